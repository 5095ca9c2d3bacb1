"""TITLE

    python reproduce.py [--against /other/python]

Needs torch and a C++ compiler. It times the old and the new side in turn, and exits with 1 while one of
them is slower by over 2 %. By default both run under this torch; --against runs the old side under another.
"""

import argparse
import math
import os
import re
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROUNDS, BLOCK_S, BY = 40, 0.005, 1.02
THREADS = 1
# Tensors: shape, stride, dtype, device, elements of memory, where in the side's file its values are.
OLD = {"env": {}, "tf32": None, "config": {}, "kernels": [], "tensors": [], "calls": []}
NEW = {"env": {}, "tf32": None, "config": {}, "kernels": [], "tensors": [], "calls": []}


def prepare(side, file):
    """Compile the kernels and make the tensors of a side; returns (call, reset, wait, clock).

    file: has the values of its whole numbers.
    """
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    import torch
    from torch._inductor import codecache, config
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.select_algorithm import extern_kernels

    torch.set_num_threads(THREADS)
    if side["tf32"] is not None:  # a side on a GPU; torch itself allows it in convolutions alone
        os.environ.pop("NVIDIA_TF32_OVERRIDE", None)  # the case was measured without the shell's
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = side["tf32"]
    if hasattr(config, "cpp_cache_precompile_headers"):
        config.cpp_cache_precompile_headers = False  # that takes longer than it saves with a few kernels
    for key, value in side["config"].items():
        *path, last = key.split(".")
        owner = config
        for name in path:
            owner = getattr(owner, name)
        setattr(owner, last, value)
    # Older code names the header of the torch that generated it by its path.
    header = getattr(codecache, "cpp_prefix", lambda: "#include <torch/csrc/inductor/cpp_prefix.h>")()
    names = {"torch": torch, "extern_kernels": extern_kernels, "async_compile": AsyncCompile()}
    for code in side["kernels"]:
        exec(re.sub(r'#include ["<][^">\n]*[">]', lambda _: header, code, count=1), names)
    names["async_compile"].wait(names)
    torch.manual_seed(0)
    tensors, memories = [], []
    names["t"] = tensors
    for shape, stride, dtype, device, elements, place in side["tensors"]:
        memory = torch.zeros(elements, dtype=getattr(torch, dtype), device=device)
        if memory.is_floating_point():
            memory.copy_(torch.rand(elements))
        tensor = memory.as_strided(shape, stride)
        if place:
            tensor.copy_(torch.load(file, weights_only=True)[place[0]][place[1]])
        tensors.append(tensor)
        memories.append((memory, memory.clone()))
    exec("def step():\n" + "".join(f"    {line}\n" for line in side["calls"]), names)
    on_gpu = any(memory.is_cuda for memory, _ in memories)

    def call():
        with torch.no_grad():
            names["step"]()

    def reset():
        for memory, values in memories:
            memory.copy_(values)

    # CPU time does not grow with other programs' work; of several threads it would be the sum.
    clock = time.thread_time if THREADS == 1 and not on_gpu else time.perf_counter
    return call, reset, torch.cuda.synchronize if on_gpu else lambda: None, clock


def serve(side, file):
    """Answer each line of the input with the seconds of a call: the median of a block of calls."""
    call, reset, wait, clock = prepare(side, file)
    call()
    print("ready", flush=True)
    for _ in sys.stdin:
        reset()
        wait()
        seconds, end = [], clock() + BLOCK_S
        while not seconds or clock() < end:
            start = clock()
            call()
            wait()
            seconds.append(clock() - start)
        print(statistics.median(seconds), flush=True)


def interval(values):
    """The median and its 95 % interval, by order statistics."""
    ordered = sorted(values)
    low = max(0, int(len(ordered) / 2 - 0.98 * math.sqrt(len(ordered))))
    return statistics.median(ordered), ordered[low], ordered[-1 - low]


def verdict(old, new):
    """(exit code, text) from the seconds of both sides, round by round."""
    lines = []
    for name, seconds in (("old", old), ("new", new)):
        middle, low, high = (1e6 * value for value in interval(seconds))
        lines.append(f"{name}: {middle:.4g} us (95 % {low:.4g} to {high:.4g})")
    ratio, low, high = interval([after / before for before, after in zip(old, new)])
    word = (
        "the new side is slower" if low > BY else "the old side is slower" if high < 1 / BY else "neither is"
    )
    lines.append(f"new / old: {ratio:.4g} (95 % {low:.4g} to {high:.4g}): {word}")
    return int(not word.startswith("neither")), "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--against", default=sys.executable, help="the interpreter of the old side")
    parser.add_argument("--serve", choices=["old", "new"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        side, file = OLD if args.serve == "old" else NEW, os.path.join(HERE, f"constants-{args.serve}.pt")
        serve(side, file)
        return 0
    if OLD == NEW and args.against == sys.executable:
        print("Both sides make the same calls of the same code: give --against /other/python")
        return 2
    workers = []
    for python, name, side in ((args.against, "old", OLD), (sys.executable, "new", NEW)):
        command, env = [python, os.path.abspath(__file__), "--serve", name], {**os.environ, **side["env"]}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        workers.append(subprocess.Popen(command, text=True, env=env, **pipes))
    seconds = ([], [])
    try:
        if [worker.stdout.readline().strip() for worker in workers] != ["ready", "ready"]:
            print("A side does not run: its error is above")
            return 3
        for number in range(ROUNDS):
            for place in (0, 1) if number % 2 else (1, 0):
                print("go", file=workers[place].stdin, flush=True)
                seconds[place].append(float(workers[place].stdout.readline()))
    finally:
        for worker in workers:
            worker.stdin.close()
            worker.wait()
    code, text = verdict(*seconds)
    print(text)
    return code


if __name__ == "__main__":
    sys.exit(main())
