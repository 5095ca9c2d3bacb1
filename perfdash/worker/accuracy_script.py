"""TITLE

    python reproduce.py

Needs torch and a C++ compiler. It runs the operators below in eager, in float64 and compiled, and exits with
1 while the compiled outputs are wrong: further from float64 than eager by more than FACTOR and TOLERANCE.
"""

import math
import os
import re
import sys

os.environ.update({})  # under which the outputs were wrong

import torch
import torch._inductor.config as config

HERE = os.path.dirname(os.path.abspath(__file__))
THREADS, TOLERANCE, FACTOR, MODE, DYNAMIC = 1, 1e-3, 2.0, None, None
TF32 = None  # on a GPU: whether products and convolutions may round to it
CONFIG = {}
CODE = ""


def rms(tensor):
    return tensor.double().square().mean().sqrt().item() if tensor.numel() else 0.0


def wrong(eager, compiled, exact):
    """(whether the compiled tensor is wrong, its error, eager's error); errors are to float64 where it is."""
    if not eager.is_floating_point():
        differ = int((eager != compiled).sum())
        return differ > 0, differ, 0
    if not torch.equal(eager.isfinite(), compiled.isfinite()):
        return True, math.inf, 0.0
    finite = eager.isfinite()
    eager, compiled = eager[finite].double(), compiled[finite].double()
    reference = eager if exact is None else exact[finite].double()
    scale, error, own = rms(eager), rms(compiled - reference), rms(eager - reference)
    close = ((eager - compiled).abs() <= TOLERANCE * min(1.0, scale) + TOLERANCE * eager.abs()).all()
    slack = TOLERANCE / 10 * min(1.0, scale) if exact is not None else max(TOLERANCE, 0.01) * scale
    return not close and error > FACTOR * own + slack, error, own


def main():
    torch.set_num_threads(THREADS)
    if hasattr(config, "cpp_cache_precompile_headers"):
        config.cpp_cache_precompile_headers = False  # that takes longer than it saves with a few kernels
    for key, value in CONFIG.items():
        *path, last = key.split(".")
        owner = config
        for name in path:
            owner = getattr(owner, name)
        setattr(owner, last, value)
    if TF32 is not None:  # torch itself allows it in convolutions alone
        os.environ.pop("NVIDIA_TF32_OVERRIDE", None)  # the case was measured without the shell's
        if hasattr(torch.backends, "fp32_precision"):  # inductor's own convolutions ask this one
            torch.backends.cudnn.fp32_precision = "tf32" if TF32 else "ieee"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = TF32
    inputs = torch.load(os.path.join(HERE, "inputs.pt"), weights_only=True)

    def function(code):
        names = {"torch": torch, "device": torch.device, "inf": math.inf, "nan": math.nan}
        exec(code, names)
        return lambda *values: names["forward"](None, *values)

    def copies(change=lambda tensor: tensor, values=inputs):
        one = {True: lambda x: change(x.clone()), False: lambda x: x}
        return [
            copies(change, x) if isinstance(x, (list, tuple)) else one[torch.is_tensor(x)](x) for x in values
        ]

    def flat(values):
        if isinstance(values, (list, tuple)):
            return [tensor for value in values for tensor in flat(value)]
        return [values] if isinstance(values, torch.Tensor) else []

    forward = function(CODE)
    in_float64 = function(re.sub(r"\btorch\.(bfloat16|float16|float32)\b", "torch.float64", CODE))
    with torch.no_grad():
        eager = flat(forward(*copies()))
        try:
            exact = flat(in_float64(*copies(lambda x: x.double() if x.is_floating_point() else x)))
        except RuntimeError:
            exact = [None] * len(eager)
        if "aten.view.dtype(" in CODE:  # reads the bits of a number: those of float64 are others
            exact = [None] * len(eager)
        compiled = flat(torch.compile(forward, mode=MODE, dynamic=DYNAMIC)(*copies()))
    failed = False
    for number, tensors in enumerate(zip(eager, compiled, exact)):
        is_wrong, error, own = wrong(*tensors)
        failed |= is_wrong
        print(f"output {number}: {'wrong' if is_wrong else 'right'}: error {error:.4g}, of eager {own:.4g}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
