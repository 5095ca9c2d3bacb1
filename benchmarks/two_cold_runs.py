"""Time a case of perfdash beside the two cold runs in which the dynamo runner gets the same figures.

    python benchmarks/two_cold_runs.py [MODEL ...]          timm models, on the last core of this process

The dynamo runner itself is in torch's repository, not in its package, and loads weights from a hub. Timed
here are its steps, as its options --performance, --accuracy, --inductor, --inference, --float32, -dcpu,
--cold-start-latency and -n50 ask for them, with random weights: two processes, each with its own imports, an
empty compiler cache and a compilation of its own. Performance: 5 calls eager and 5 compiled to warm up, then
50 of each in turn. Accuracy: one call of a float64 copy, two eager, one compiled, compared. Both have
the core that perfdash measures on and no other: with more cores inductor compiles C++ files side by side,
which perfdash does not, since it measures how long compiling takes on the cores of a case.

Wanted: a case at most 0.5 of the two runs, the whole command for one case at most 0.6.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODELS = ("mobilenetv3_large_100", "ghostnet_100", "inception_v3", "deit_base_distilled_patch16_224")
REPEATS, WARM_UP = 50, 5


def last_core() -> int:
    """The last core that this process may use."""
    return max(os.sched_getaffinity(0))


def steps_of_the_runner(kind: str, name: str) -> None:
    """One of its two runs, in this process."""
    os.sched_setaffinity(0, {last_core()})  # before inductor counts the cores
    import copy

    import timm
    import torch
    import torch._dynamo
    import torch._inductor

    torch.set_num_threads(1)
    torch.manual_seed(1337)
    model = timm.create_model(name, pretrained=False).eval()
    size = model.default_cfg["input_size"]
    inputs = torch.randn(1, *size)
    with torch.no_grad():
        model(inputs)  # it validates that the model runs before anything else
        if kind == "accuracy":
            copy.deepcopy(model).double()(inputs.double())
            first, second = copy.deepcopy(model)(inputs), copy.deepcopy(model)(inputs)
            assert torch.equal(first, second)
            compiled = torch.compile(model)(inputs)
            assert torch.nn.functional.cosine_similarity(first, compiled).min() > 0.99
            return
        compiled_model = torch.compile(model)
        for called in (model, compiled_model):
            for _ in range(WARM_UP):
                called(inputs)
        for _ in range(REPEATS):
            for called in (model, compiled_model):
                began = time.perf_counter()
                called(inputs)
                time.perf_counter() - began


def wall_time(words: list[str], environment: dict[str, str]) -> float:
    """Seconds that a command takes; ends the program if it fails."""
    began = time.monotonic()
    ran = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"{' '.join(words)} ended with {ran.returncode}:\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    return time.monotonic() - began


def main() -> None:
    from perfdash.runner.run_journal import read_results

    print(f"{'model':<36}{'two runs':>9}{'case':>7}{'share':>7}{'command':>9}{'share':>7}")
    for name in sys.argv[1:] or MODELS:
        runs_s = 0.0
        for kind in ("performance", "accuracy"):
            with tempfile.TemporaryDirectory() as cache:
                environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"}
                runs_s += wall_time([sys.executable, __file__, f"--{kind}", name], environment)
        with tempfile.TemporaryDirectory() as out:
            core = str(last_core())
            command_s = wall_time(
                [
                    *(sys.executable, "-m", "perfdash", "run", "--suite", "timm", "--models", name),
                    *("--threads", "1", "--batch-size", "1", "--cores", core, "--jobs", "1"),
                    *("--out", out, "--no-history"),
                ],
                {**os.environ},
            )
            (folder,) = Path(out).glob("*/")
            (result,) = read_results(folder)
        print(
            f"{name:<36}{runs_s:>9.1f}{result.wall_s:>7.1f}{result.wall_s / runs_s:>7.2f}"
            f"{command_s:>9.1f}{command_s / runs_s:>7.2f}",
            flush=True,
        )


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in ("--performance", "--accuracy"):
        steps_of_the_runner(sys.argv[1][2:], sys.argv[2])
    else:
        main()
