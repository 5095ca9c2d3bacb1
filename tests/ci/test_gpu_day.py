"""ci/gpu_day.sh: what it plans (pure), and what it runs, with a stand-in of perfdash."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdash.suites.suite_file import load_suite
from tests.ci.nights import CHECKOUT

SCRIPT = CHECKOUT / "ci" / "gpu_day.sh"
spec = importlib.util.spec_from_file_location("planning", CHECKOUT / "ci" / "gpu_day" / "planning.py")
planning = importlib.util.module_from_spec(spec)
sys.modules["planning"] = planning  # dataclasses look their module up
spec.loader.exec_module(planning)
BOTH = pytest.mark.parametrize("device", ["cuda", "cpu"])

# Plays perfdash: `calls` has each call. A run leaves a folder with two results; `dies-NAME` has it kill the
# script first, once; `wrong` changes a known value; `full`: it ends before it is done; `fails` and `tests`:
# exit codes of doctor and pytest.
STAND_IN = """#!{python} -IS
import json, os, pathlib, signal, sys
home, words = pathlib.Path({home!r}), sys.argv[1:]
with open(home / "calls", "a") as calls:
    calls.write(" ".join(words) + "\\n")
option = lambda flag: words[words.index(flag) + 1]
if words[0] == "run" and (home / "broken").exists():
    sys.exit(3)
if words[0] == "run":
    resumed = "--resume" in words
    if resumed and (home / "refuses").exists():
        sys.exit(3)
    folder = pathlib.Path(option("--resume")) if resumed else pathlib.Path(option("--out"))
    if not resumed:
        folder /= f"run{{len(list(folder.glob('*'))) + 1}}"
    folder.mkdir(parents=True, exist_ok=True)
    environment = {{"worker": {{"torch": "2.15"}}, "gpus": ["NVIDIA Test"]}}
    tell = lambda state: (folder / "run.json").write_text(
        json.dumps({{"state": state, "environment": environment}}))
    tell("running")
    def keep(model, backend, **values):
        case = {{"model": model, "backend": backend, "dtype": "float32", "batch_size": 1}}
        with open(folder / "results.jsonl", "a") as lines:
            lines.write(json.dumps({{"case": case, "status": "pass", **values}}) + "\\n")
    keep("products", "aot-eager", speedup={{"value": 2.0 if (home / "wrong").exists() else 4.02}})
    dies = home / ("dies-" + folder.parent.name)
    if dies.exists():
        dies.unlink()
        with open(folder / "results.jsonl", "a") as lines:
            lines.write('{{"half a')
        os.kill(os.getppid(), signal.SIGKILL)
        sys.exit(0)
    keep("buffers", "inductor", compression_ratio=2.0)
    if (home / "full").exists():
        sys.exit(3)
    tell("done")
if words[0] == "report":
    pathlib.Path(option("--to")).write_text("| a table |")
for word, file in (("doctor", "fails"), ("pytest", "tests")):
    if word in words and (home / file).exists():
        sys.exit(int((home / file).read_text()))
"""


@pytest.fixture
def home(tmp_path):
    stand_in = tmp_path / "perfdash"
    stand_in.write_text(STAND_IN.format(python=sys.executable, home=str(tmp_path)))
    stand_in.chmod(0o755)
    return tmp_path


def day(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PERFDASH_DAY_COMMAND": str(home / "perfdash"), "PERFDASH_PYTHON": sys.executable}
    command = [SCRIPT, "--device", "cpu", "--out", str(home / "day"), *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, cwd=home)


def calls(home: Path) -> list[str]:
    lines = (home / "calls").read_text().splitlines()
    (home / "calls").write_text("")
    return lines


# Planning


@BOTH
def test_every_model_of_the_plan_is_in_its_suite(device):
    for step in planning.steps(device):
        words = [*step.words, step.flag, ",".join(step.items)]
        if "--suite" not in words:
            continue
        suites = [load_suite(name) for name in words[words.index("--suite") + 1].split(",")]
        known = {model.name for suite in suites for model in suite.models}
        assert set(words[words.index("--models") + 1].split(",")) <= known, step.name


def test_ten_models_of_each_suite_are_planned_for_a_gpu():
    models = {
        name for step in planning.steps("cuda") if step.name.startswith("suites") for name in step.items
    }
    for suite in ("timm", "huggingface", "torchbench"):
        assert len(models & {model.name for model in load_suite(suite).models}) >= 10


@BOTH
@given(minutes=st.floats(1, 300), pace=st.floats(0.2, 6))
def test_what_is_kept_fits_or_is_what_must_be(device, minutes, pace):
    steps = planning.steps(device)
    budget_s = minutes * 60
    kept, cuts = planning.fit(steps, budget_s, pace)
    expected_s = sum(step.expected_s for step in kept) * pace
    least = all(step.must and len(step.items) <= step.least for step in kept)
    assert expected_s <= budget_s + 1e-6 or least
    # Nothing is lost between what is kept and what is said to be left out, and first items stay first.
    left_out = {cut.step: cut for cut in cuts}
    for step in steps:
        now = next((other for other in kept if other.name == step.name), None)
        missing = left_out[step.name].items if step.name in left_out else ()
        assert (now.items if now else ()) + missing == step.items
        assert now is not None or left_out[step.name].whole
        assert now is not None or not step.must


@BOTH
def test_more_minutes_never_keep_less(device):
    steps, before = planning.steps(device), 0
    for minutes in range(2, 200, 3):
        kept = planning.fit(steps, minutes * 60)[0]
        cases = sum(len(step.items) for step in kept)
        assert cases >= before
        before = cases
    assert planning.fit(steps, 200 * 60)[1] == []


def test_the_least_important_goes_first():
    kept, cuts = planning.fit(planning.steps("cuda"), 25 * 60 - planning.FINISH_S)
    names = [step.name for step in kept]
    assert names[:5] == ["doctor", "cuda-tests", "truth", "suites-1", "cudagraphs-1"]
    assert {"resnet50", "generation", "training"} <= set(names)
    assert "suites-3: left out (OPTForCausalLM" in str(next(cut for cut in cuts if cut.step == "suites-3"))


def test_the_pace_follows_what_steps_took():
    assert planning.pace_of([]) == 1.0
    assert planning.pace_of([(10, 20), (30, 20)]) == 1.0
    assert planning.pace_of([(10, 1)]) == 0.2
    assert planning.pace_of([(1, 100)]) == 6.0


def test_known_values():
    products = {"case": {"model": "products", "backend": "aot-eager"}, "speedup": {"value": 4.1}}
    adds = {"case": {"model": "additions", "backend": "aot-eager"},
            "conditions": {"gpu_work": {"eager": {"kernels": 199}}}}  # fmt: skip
    rows = planning.known_values([products, adds], "cuda")
    assert [(row["model"], row["holds"]) for row in rows] == [("products", True), ("additions", False)]
    assert [row["model"] for row in planning.known_values([products, adds], "cpu")] == ["products"]
    failed = {**products, "speedup": None}
    assert planning.known_values([failed], "cpu")[0]["holds"] is False


def test_the_page_of_a_day():
    work = {"eager": {"kernels": 300, "launches": 300, "launch_ms": 4.0, "gpu_busy_ms": 1.5},
            "backend": {"error": "no profiler", "launch_ms": 0.5}}  # fmt: skip
    case = {"model": "m", "dtype": "float16", "batch_size": 8, "backend": "inductor"}
    record = {"case": case, "status": "pass", "conditions": {"gpu_work": work}, "eager_ms": {"median": 4.25}}
    state = {
        "device": "cuda", "gpu": "NVIDIA Test", "torch": "2.15", "minutes": 25, "spent_s": 90, "host": "h",
        "started": "2026-11-25 00:00 UTC", "cuts": ["vit_b_16: left out (1)"],
        "steps": {"suites-1": {"what": "models", "state": "done", "spent_s": 60.0}},
    }  # fmt: skip
    page = planning.summary(state, {"suites-1": [record]})
    assert "| suites-1 | models | done | 1.0 | 1 | 1 |" in page
    assert "- vit_b_16: left out (1)" in page
    assert "| suites-1 | m float16 bs8 inductor | 300 / - | 300 / - | 4 / 0.5 | 1.5 / - | 4.25 / - |" in page


# The script


@pytest.mark.slow
def test_a_whole_day_leaves_one_folder(home):
    done = day(home, "--minutes", "60", "--archive", str(home / "day.tar.gz"))
    assert done.returncode == 0, done.stdout + done.stderr
    out = home / "day"
    steps = json.loads((out / "day.json").read_text())["steps"]
    assert {step["state"] for step in steps.values()} == {"done"}
    assert (out / "tables" / "truth.md").read_text() == "| a table |"
    assert "| products | aot-eager | speedup | 4 | 4.02 | holds |" in (out / "README.md").read_text()
    assert "NVIDIA Test" in (out / "README.md").read_text()
    with tarfile.open(home / "day.tar.gz") as packed:
        assert "./runs/truth/run1/results.jsonl" in packed.getnames()
    made = calls(home)
    assert [line for line in made if "doctor" in line]
    assert sum(line.startswith("plot") for line in made) == sum(line.startswith("run") for line in made) == 11
    (graphs,) = [line for line in made if "reduce-overhead" in line and "dcgan" in line]
    assert "--models dcgan,lcnet_050" in graphs
    assert day(home, "--minutes", "60").returncode == 0
    assert calls(home) == [], "a day that is done measures nothing again"


@pytest.mark.slow
def test_a_piece_that_is_killed_loses_nothing(home):
    (home / "dies-generation").touch()
    killed = day(home, "--minutes", "60", "--archive", str(home / "kept.tar.gz"))
    assert killed.returncode == -9
    before = calls(home)
    assert "generation" in before[-1]
    done = day(home, "--minutes", "60")
    assert done.returncode == 0, done.stdout + done.stderr
    after = calls(home)
    assert after[0] == f"run --resume {home / 'day' / 'runs' / 'generation' / 'run1'} --wait 2m"
    assert not [line for line in after if "truth" in line and line.startswith("run")]
    results = [
        line for line in (home / "day" / "README.md").read_text().splitlines() if "| generation |" in line
    ]
    assert "| done |" in results[0]


@pytest.mark.slow
def test_a_run_that_cannot_be_resumed_is_measured_anew(home):
    """Where packages have changed since, say; what it has measured stays."""
    (home / "dies-truth").touch()
    day(home, "--minutes", "60")
    (home / "refuses").touch()
    done = day(home, "--minutes", "60")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "run1 cannot be resumed: measured anew" in done.stdout
    assert sorted(path.name for path in (home / "day" / "runs" / "truth").iterdir()) == ["run1", "run2"]


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["full", "broken"])
def test_a_run_that_the_machine_ended_again_is_gone_on_with(home, trouble):
    """The disk is full in the middle, or other programs have the cores: no new run can be measured either."""
    (home / "dies-truth").touch()
    day(home, "--minutes", "60")
    (home / trouble).touch()
    done = day(home, "--minutes", "60")
    assert done.returncode == 3
    assert "Nothing can be measured here; mend that" in done.stdout
    (home / trouble).unlink()
    calls(home)
    assert day(home, "--minutes", "60").returncode == 0
    run = home / "day" / "runs" / "truth" / "run1"
    assert f"run --resume {run} --wait 2m" in calls(home)
    assert list(run.parent.iterdir()) == [run]


@pytest.mark.slow
def test_a_machine_that_can_measure_nothing_ends_the_day_until_it_is_mended(home):
    (home / "broken").touch()
    done = day(home, "--minutes", "60")
    assert done.returncode == 3
    assert "Nothing can be measured here" in done.stdout
    assert sum(line.startswith("run") for line in calls(home)) == 1
    (home / "broken").unlink()
    assert day(home, "--minutes", "60").returncode == 0


@pytest.mark.slow
def test_a_packed_day_goes_on_elsewhere(home):
    (home / "fails").write_text("1")
    assert day(home, "--minutes", "60", "--archive", str(home / "a.tgz")).returncode == 0, "doctor's own gate"
    calls(home)
    (home / "day").rename(home / "first")
    assert day(home, "--minutes", "60", "--archive", str(home / "a.tgz")).returncode == 0
    assert calls(home) == []


@pytest.mark.slow
def test_a_known_value_that_is_missed_is_a_failure(home):
    (home / "wrong").touch()
    done = day(home, "--minutes", "60")
    assert done.returncode == 1
    assert "products aot-eager: speedup 2.0, known: 4" in done.stdout
    assert "DOES NOT HOLD" in (home / "day" / "README.md").read_text()


@pytest.mark.slow
def test_tests_that_fail_are_a_step_that_failed(home):
    (home / "tests").write_text("1")
    done = day(home, "--minutes", "60")
    assert done.returncode == 1
    log = home / "day" / "logs" / "cuda-tests.log"
    assert f"cuda-tests failed with exit code 1: {log}" in done.stdout
    steps = json.loads((home / "day" / "day.json").read_text())["steps"]
    assert {name for name, step in steps.items() if step["state"] == "failed"} == {"cuda-tests"}
    assert "| the tests of the stand-in device | failed |" in (home / "day" / "README.md").read_text()


def test_few_minutes_leave_cases_out_and_say_so(home):
    day(home, "--minutes", "60", "--piece", "--piece-minutes", "0.01")
    path = home / "day" / "day.json"
    state = json.loads(path.read_text())
    path.write_text(json.dumps({**state, "spent_s": 60 * 60 - planning.FINISH_S - 5}))
    done = day(home, "--minutes", "60")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "truth" in {Path(line.split()[-3]).name for line in calls(home) if line.startswith("run")}
    assert "training: left out" in done.stdout
    assert "- training: left out" in (home / "day" / "README.md").read_text()
    assert not (home / "day" / "runs" / "training").exists()


@pytest.mark.slow
def test_paths_are_meant_where_the_command_is_typed(home):
    """Also those that are given in one word."""
    (home / "desk").mkdir()
    env = {**os.environ, "PERFDASH_DAY_COMMAND": str(home / "perfdash"), "PERFDASH_PYTHON": sys.executable}
    words = ["--device=cpu", "--out=day", "--archive=day.tgz", "--minutes=60"]
    done = subprocess.run([SCRIPT, *words], env=env, capture_output=True, text=True, cwd=home / "desk")
    assert done.returncode == 0, done.stderr
    assert (home / "desk" / "day" / "README.md").is_file()
    assert (home / "desk" / "day.tgz").is_file()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--minutes", "0"), "above 0"),
        (("--minutes", "x"), "invalid float"),
        (("--wheels", "nowhere"), "no wheels in"),
        (("--wheels=nowhere",), "no wheels in"),
        (("--device", "tpu"), "invalid choice"),
    ],
)
def test_wrong_usage(home, words, says):
    done = day(home, *words)
    assert (done.returncode, says in done.stderr) == (2, True), done.stderr


def test_help_names_what_it_needs(home):
    shown = day(home, "--help").stdout
    for name in ("nvidia-ml-py", "pydantic", "--piece", "--wheels", "--plan"):
        assert name in shown
