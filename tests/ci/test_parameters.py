"""Parameters of a nightly are checked before anything uses them: at a desk, under Jenkins, in each stage."""

from __future__ import annotations

import json
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkouts import write_checkout
from tests.ci.nights import CHECKOUT, checkout_with, variables
from tests.ci.stage import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def script(stage: Stage, name: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """One script of ci/, called as Jenkins calls it."""
    env = {**stage.env, "PERFDASH_NIGHTLY": str(stage.home / "night"), **more}
    return subprocess.run(
        [CHECKOUT / "ci" / name, *words], cwd=stage.home, env=env, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize(("name", "words", "parameter"), [
    ("nightly/measure.sh", [], "BASE_RUNS"),
    ("nightly/measure.sh", [], "SHARDS"),
    ("nightly/bisect.sh", [], "BISECT_HOURS"),
    ("nightly/cell.sh", [], "CELL_MINUTES"),
    ("nightly/check.sh", [], "CONFIRM_MOST"),
    ("compare.sh", ["measure"], "PAIRS"),
    ("bisect.sh", [], "BISECT_HOURS"),
])  # fmt: skip
def test_a_number_that_is_a_command_is_refused_and_not_run(stage, name, words, parameter):
    """Bash runs what stands in brackets of an arithmetic expression."""
    marker = stage.home / "ran"
    more = {"STAGE": "measure", "BISECT": "yes", "BISECT_RECIPE": "nightly"}
    more[parameter] = f"PATH[$(touch {marker})]"
    done = script(stage, name, *words, **more)
    assert not marker.exists()
    assert done.returncode == 2, done.stderr
    assert f"{parameter}=PATH[$(touch" in done.stderr
    assert not stage.calls()


@pytest.mark.slow
def test_a_parameter_with_a_password_is_refused_and_not_lost(stage):
    """Where secrets are left out of the environment, it must not be taken for one of them."""
    done = script(stage, "nightly/torch.sh", UNDER_TEST="git+https://me:s3cret@host/x")
    assert (done.returncode, "put it into ~/.netrc" in done.stderr) == (2, True)
    done = script(stage, "nightly/torch.sh", UNDER_TEST="git+https://me@127.0.0.1:9/x")
    assert "UNDER_TEST=git+https://me@127.0.0.1:9/x cannot be read by pip" in done.stderr


def test_a_password_is_looked_for_in_each_parameter_and_not_behind_the_host(stage):
    refused = "an address with a password would be written down"
    more = {
        "TORCH_INDEX": "https://host/whl", "UNDER_TEST": f"git+https://host:8443/x@{'c0ffee' * 6}",
        "START_COMMAND": "curl https://host:8443/start/me@host",
    }  # fmt: skip
    assert refused not in script(stage, "nightly/check.sh", **more).stderr
    for name, text in [
        ("TORCH", "https://u:p@h/torch.whl"),
        ("TORCH", "https://u:p@h/torch"),
        ("TORCH_INDEX", "https://u:p@h/x"),
        ("UNDER_TEST", "git+https://u:p@h/x"),
        ("START_COMMAND", "curl https://h/a && curl https://u:p@h/x"),
        ("STOP_COMMAND", 'curl "https://u:$PASSWORD@h/x"'),
    ]:
        done = script(stage, "nightly/check.sh", **{**more, name: text})
        assert (done.returncode, f"{name}: {refused}" in done.stderr) == (2, True), (name, done.stderr)


def test_the_history_s_password_is_refused_on_the_command_line(stage):
    """There every user of the machine reads it, all night."""
    done = stage.night("--db", "postgresql://me:hidden@host/perf")
    assert (done.code, "--db: a password is seen there by others" in done.out) == (2, True)
    assert "hidden" not in done.out
    assert stage.night("--dry-run", "--db=host=h password=hidden").code == 2
    assert not stage.calls()


def test_a_night_with_configurations_expects_no_case_of_the_default_one(stage):
    more = {"EVERY": "24h", "SUITES": "timm"}
    assert script(stage, "nightly/heartbeat.sh", "begin", **more).returncode == 0
    (call,) = stage.calls("nightly begin")
    assert call.endswith("--expect timm cpu float32 1")
    assert script(stage, "nightly/heartbeat.sh", "begin", **more, CONFIGURATIONS="socket").returncode == 0
    (call,) = stage.calls("nightly begin")
    assert "--expect" not in call


@pytest.mark.parametrize(("more", "words"), [
    ({"SUITES": "techniques"}, "--suite techniques --out"),
    ({"SUITES": "techniques", "CONFIGURATIONS": "default"}, "techniques --configuration default --out"),
    ({"DTYPES": "float32", "CONFIGURATIONS": "default"}, "--dtype float32 --configuration default --out"),
    ({"DTYPES": "float32,amp"}, "--dtype float32,amp --out"),
])  # fmt: skip
def test_a_dtype_is_passed_on_where_one_was_given_whatever_the_configurations(stage, more, words):
    """--dtype replaces the ways of a suite such as techniques."""
    assert script(stage, "nightly/measure.sh", **more).returncode == 0
    (call,) = stage.calls("run")
    assert words in call
    assert ("--dtype" in call) == ("DTYPES" in more)


@pytest.mark.parametrize("source", ["--torchbench /b", "--torchbench=/b", "--model net.py:make"])
def test_what_suites_names_is_measured_also_beside_models_of_ones_own(stage, source):
    for suites in ("", "torchbench,huggingface,timm", "mine.toml", "timm,torchbench-checkout"):
        more = {"RUN_ARGUMENTS": source, "SUITES": suites}
        more["PERFDASH_NIGHTLY"] = str(stage.home / f"night of {suites}")
        assert script(stage, "nightly/measure.sh", **more).returncode == 0
        (call,) = stage.calls("run")
        is_default = suites in ("", "torchbench,huggingface,timm")
        measured = suites
        if is_default:  # alone; a suite of perfdash.toml would be measured in place of the checkout
            measured = "torchbench-checkout" if source.startswith("--torchbench") else ""
        assert (f" --suite {measured} " in call) == bool(measured)
        assert call.count("--suite") == bool(measured)
        assert call.endswith(f" {source}")


@pytest.mark.parametrize("suites", ["timm", "torchbench-checkout,timm", "timm,mine.toml"])
def test_a_checkout_is_measured_beside_the_suites_of_perfdash(stage, suites):
    more = {"RUN_ARGUMENTS": "--torchbench /b", "PERFDASH_SUITE": suites}
    assert script(stage, "nightly/measure.sh", **more).returncode == 0
    (call,) = stage.calls("run")
    measured = "timm,torchbench-checkout" if suites == "timm" else suites  # mine.toml may be of the checkout
    assert f" --suite {measured} " in call


CHECKOUT_OPTION, MODEL = "--torchbench '/a b'", "--model net.py:make"


@pytest.mark.parametrize(("suites", "arguments", "cells"), [
    ("", CHECKOUT_OPTION, [("torchbench-checkout", CHECKOUT_OPTION)] * 2),
    ("timm,mine.toml", f"--jobs 2 {CHECKOUT_OPTION}", [("timm", "--jobs 2")] * 2 + [("own", None)]),
    ("timm", CHECKOUT_OPTION, [("timm", "")] * 2 + [("torchbench-checkout", CHECKOUT_OPTION)] * 2),
    ("", MODEL, [("own", MODEL)]),
    ("timm", f"--model=other.py:make {MODEL} --jobs 2", [("timm", "--jobs 2")] * 2 + [("own", None)]),
    ("timm,torchbench-checkout", f"{MODEL} {CHECKOUT_OPTION}",
     [("timm", "")] * 2 + [("torchbench-checkout", CHECKOUT_OPTION)] * 2 + [("own", None)]),
])  # fmt: skip
def test_models_of_the_options_have_a_cell_of_their_own(stage, suites, arguments, cells):
    """In each cell they would be measured as often as there are cells. A checkout is cut into shards."""
    more = {"RUN_ARGUMENTS": arguments, "SUITES": suites, "SHARDS": "2", "NIGHT": str(stage.home / "night")}
    done = script(stage, "nightly/cells.sh", "measure", "--json", **more)
    assert done.returncode == 0, done.stderr
    planned = json.loads(done.stdout)
    assert [cell["CELL"].partition("-cpu-")[0] for cell in planned] == [name for name, _ in cells]
    for cell, (_, words) in zip(planned, cells, strict=True):
        assert shlex.split(cell.get("RUN_ARGUMENTS", arguments)) == shlex.split(
            arguments if words is None else words
        )


@pytest.mark.parametrize("suites", ["timm", "timm,mine.toml"])
def test_the_cell_of_own_models_is_one_run_without_shards(stage, suites):
    """A shard is refused where there are fewer cases than shards."""
    more = {
        "RUN_ARGUMENTS": MODEL, "SUITES": suites, "SHARDS": "2", "MODELS": "resnet*",
        "NIGHT": str(stage.home / "night"),
    }  # fmt: skip
    *_, own = json.loads(script(stage, "nightly/cells.sh", "measure", "--json", **more).stdout)
    done = script(stage, "nightly/measure.sh", **{**more, **own})
    assert (own["CELL"], done.returncode) == ("own-cpu-1", 0), done.stderr
    (call,) = stage.calls("run")
    assert "--shard" not in call
    assert ("--models" in call) == ("mine.toml" in suites)  # which selects models of suites only


@pytest.mark.slow
def test_a_night_without_dtypes_expects_those_of_the_suite(stage):
    (stage.home / "mine.toml").write_text(
        "name = 'mine'\nloader = 'timm'\n[[ways]]\nbackend = 'inductor'\ndtypes = ['amp', 'bfloat16']\n"
        '[[models]]\nname = "resnet18"\n'
    )
    more = {"EVERY": "24h", "SUITES": f"{stage.home}/mine.toml,/other.toml,timm", "THREADS": "1,socket"}
    assert script(stage, "nightly/heartbeat.sh", "begin", **more).returncode == 0
    (call,) = stage.calls("nightly begin")
    assert call.partition(" --expect ")[2].split(" --expect ") == [
        "mine cpu amp 1", "mine cpu bfloat16 1", "timm cpu float32 1",
        "mine cpu amp", "mine cpu bfloat16", "timm cpu float32",
    ]  # fmt: skip
    assert script(stage, "nightly/heartbeat.sh", "begin", **more, DTYPES="float16").returncode == 0
    (call,) = stage.calls("nightly begin")
    assert "--expect mine cpu float16 1 --expect timm cpu float16 1" in call


def test_a_night_expects_the_results_of_a_checkout(stage):
    more = {"EVERY": "24h", "SUITES": "timm,torchbench-checkout"}
    for checkout in ("", str(write_checkout(stage.home / "benchmark"))):
        done = script(stage, "nightly/heartbeat.sh", "begin", **more, PERFDASH_TORCHBENCH=checkout)
        assert done.returncode == 0, done.stderr
        (call,) = stage.calls("nightly begin")
        assert ("--expect torchbench-checkout cpu float32 1" in call) == bool(checkout)
        assert "--expect timm cpu float32 1" in call


@pytest.mark.parametrize(("settings", "expected"), [
    ({}, ["mine cpu amp 1", "timm cpu float32 1"]),
    ({"PERFDASH_DTYPE": "bfloat16"}, ["mine cpu bfloat16 1", "timm cpu bfloat16 1"]),
    ({"PERFDASH_BACKEND": "onnxruntime"}, ["mine cpu float32 1", "timm cpu float32 1"]),
    ({"PERFDASH_DTYPE": "bfloat16", "DTYPES": "amp"}, ["mine cpu amp 1", "timm cpu amp 1"]),
    ({"PERFDASH_MODELS": "resnet*"}, []),
    ({"PERFDASH_NO_HISTORY": "true"}, []),
])  # fmt: skip
def test_a_night_expects_what_the_settings_of_its_runs_measure(
    stage: Stage, settings: dict[str, str], expected: list[str]
) -> None:
    (stage.home / "mine.toml").write_text(
        "name = 'mine'\nloader = 'timm'\n[[ways]]\nbackend = 'inductor'\ndtypes = ['amp']\n"
        '[[models]]\nname = "resnet18"\n'
    )
    more = {"EVERY": "24h", "SUITES": f"{stage.home}/mine.toml,timm", **settings}
    done = script(stage, "nightly/heartbeat.sh", "begin", **more)
    assert done.returncode == 0, done.stderr
    (call,) = stage.calls("nightly begin")
    assert call.split(" --expect ")[1:] == expected


def test_the_end_of_a_night_names_no_run_that_no_history_takes(stage: Stage) -> None:
    """It would be missed there: a shard, whose rest is on other machines, or a run with --no-history."""
    of_runs = {
        "whole": {"plan": {"shard": None}, "configuration": {"no_history": False}},
        "shard": {"plan": {"shard": "2/4"}, "configuration": {"no_history": False}},
        "own": {"plan": {"shard": None}, "configuration": {"no_history": True}},
    }
    for name, info in of_runs.items():
        (stage.home / name).mkdir()
        (stage.home / name / "run.json").write_text(json.dumps(info))
    (stage.home / "night").mkdir()
    told = "".join(f"{stage.home}/{name}\n" for name in [*of_runs, "gone"])
    (stage.home / "night" / "run").write_text(told)
    assert script(stage, "nightly/heartbeat.sh", "end", "ok", EVERY="24h").returncode == 0
    (call,) = stage.calls("nightly end")
    assert call.split(" --run ")[1:] == [f"{stage.home}/whole", f"{stage.home}/gone"]


def test_the_line_of_a_nightly_reaches_its_runs_and_no_comparison(stage):
    night = stage.home / "night"
    night.mkdir()
    (night / "python-base").write_text("/base")
    (night / "python-change").write_text("/change")
    assert script(stage, "nightly/measure.sh", LINE="feature").returncode == 0
    assert " --line feature " in stage.calls("run")[0]
    assert script(stage, "nightly/measure.sh", LINE="", BASE_RUNS="2").returncode == 0
    assert "--line" not in stage.calls("run")[0]
    assert script(stage, "compare.sh", "measure", LINE="feature").returncode == 0
    assert "--line" not in stage.calls("compare-builds")[0]
    done = stage.night("--line", "my branch")
    assert (done.code, "LINE=my branch: give a name" in done.out) == (2, True)


def test_a_comparison_measures_what_a_night_would(stage):
    night = stage.home / "night"
    night.mkdir()
    for side in ("base", "change"):
        (night / f"python-{side}").write_text(f"/{side}")
    both = "--python /change --base-python /base"
    more = {
        "SUITES": "timm",
        "MODELS": "a*",
        "CONFIGURATIONS": "default,socket",
        "RUN_ARGUMENTS": "--jobs 2",
    }
    assert script(stage, "compare.sh", "measure", **more).returncode == 0
    assert stage.calls("compare-builds") == [
        f"compare-builds --pairs 8 --suite timm --configuration default,socket --out {night}/out --models a* "
        f"--threads 1 --device cpu --jobs 2 {both}"
    ]
    assert script(stage, "compare.sh", "measure", RUN_ARGUMENTS="--model net.py:make").returncode == 0
    assert stage.calls("compare-builds") == [
        f"compare-builds --pairs 8 --out {night}/out --threads 1 --device cpu --model net.py:make {both}"
    ]


@pytest.mark.parametrize("given", ["", "4"])
def test_a_bisection_of_an_alert_takes_from_it_what_nobody_gave(stage: Stage, given: str) -> None:
    """An option that is passed comes before the alert's own; Jenkins sets empty parameters, too."""
    done = script(stage, "bisect.sh", ALERT="12", THREADS=given, SUITE="", MODEL="", METRIC="", RECIPE="")
    assert done.returncode == 0, done.stderr
    (call,) = stage.calls("bisect")
    threads = f"--threads {given} " if given else ""
    python = f"{stage.venv}/bin/python"
    assert call == f"bisect --out {stage.home}/runs --alert 12 {threads}--python {python}"


def test_what_installs_packages_gets_no_secret(stage):
    """Neither ci/torch_build.sh nor ci/setup.sh, whatever the stage around them gets."""
    (stage.venv / "bin" / "python").unlink()
    python = stage.venv / "bin" / "python"
    python.write_text(f'#!/bin/sh\nenv >>{stage.home}/seen\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    fails = stage.home / "fails"
    fails.write_text(f"#!/bin/sh\nenv >>{stage.home}/seen\nexit 1\n")
    fails.chmod(0o755)
    names = ("GITHUB_TOKEN", "PERFDASH_DB", "PERFDASH_SMTP_PASSWORD", "PERFDASH_WEBHOOK", "MY_PASSWORD")
    for name, code in (("setup", 3), ("torch", 0)):
        done = script(stage, f"nightly/{name}.sh", PYTHON=str(fails), **dict.fromkeys(names, "s3cret"))
        assert done.returncode == code, done.stderr
        assert "PATH=" in (stage.home / "seen").read_text(), name
        assert "s3cret" not in (stage.home / "seen").read_text(), name
        (stage.home / "seen").unlink()


POST = {"POST": "yes", "REPO": "o/r", "ISSUE": "7"}
# Parameters, and what is said of them; a night at a desk checks them so before it begins.
CHECKED: list[tuple[dict[str, str], str]] = [
    ({}, ""),
    ({**POST, "GITHUB_TOKEN": "ghp_hidden", "SHARD": "2/4", "EVERY": "24h", "BISECT_HOURS": "1.5"}, ""),
    ({"CELL_MINUTES": "abc"}, "CELL_MINUTES=abc: give a number from 1"),
    ({"SHARDS": "0"}, "SHARDS=0: give a number from 1"),
    ({"START_MINUTES": "0"}, "START_MINUTES=0 is no number of minutes"),
    ({"STOP_MINUTES": "a[$(id)]"}, "STOP_MINUTES=a[$(id)] is no number of minutes"),
    ({"BISECT_HOURS": "many"}, "BISECT_HOURS=many is no number of hours"),
    ({"THREADS": "many"}, "'many' is no number of threads"),
    ({"THREADS": ","}, "THREADS=,: give a number of threads"),
    ({"DEVICES": " "}, "DEVICES= : give cpu, cuda or both"),
    ({"SHARD": "5/4"}, "SHARD=5/4: there is no such part"),
    ({"EVERY": "0h"}, "EVERY=0h: give it as 24h, 7d or 90m"),
    ({"SHARDS": "2", "RUN_ARGUMENTS": "--costs last"}, "--costs last is another run for each shard"),
    ({"SHARDS": "2", "RUN_ARGUMENTS": "--costs=last"}, "--costs last is another run for each shard"),
    ({"SHARDS": "2", "RUN_ARGUMENTS": "--costs 2026-11-01_farm"}, ""),
    ({"RUN_ARGUMENTS": "--costs last"}, ""),
    ({"DEVICES": "tpu"}, "'tpu' is neither cpu nor cuda"),
    ({"START_COMMAND": "if"}, "START_COMMAND is no command of bash"),
    ({"SUITES": "mine.toml"}, "SUITES: there is no file"),
    ({"TORCH": "none.whl"}, "TORCH: there is no file"),
    ({"TORCH": "2.14.0+cpu"}, ""),
    ({"TORCH": "nightyl"}, "TORCH=nightyl is none of installed, nightly, a version"),
    ({"TORCH": "nightly"}, "give the index of nightly wheels"),
    ({"TORCH": "nightly", "TORCH_INDEX": "https://host/whl"}, ""),
    ({"TORCH": "abcdef0"}, "of which clone? TORCH_REPO=PATH"),
    ({"TORCH": "abcdef0", "TORCH_REPO": "/tmp"}, ""),
    ({"UNDER_TEST": "/none/mylib"}, "UNDER_TEST=/none/mylib: there is no such folder"),
    ({"UNDER_TEST": "./none"}, "/./none: there is no such folder"),
    ({"UNDER_TEST": "~/none/mylib"}, "/none/mylib: there is no such folder"),
    ({"UNDER_TEST": "~/lib", "HOME": "/usr"}, ""),
    ({"UNDER_TEST": "mylib==1.2"}, ""),
    ({"SHARDS": "4", "RUN_ARGUMENTS": "--hours 8"}, "--hours needs the history, which shards do not have"),
    ({"SHARD": "2/4", "RUN_ARGUMENTS": "--fail-on=regression"}, "give the variable FAIL_ON=regression"),
    ({"SHARDS": "4", "RUN_ARGUMENTS": "--fail-on accuracy"}, ""),
    ({"SHARDS": "4", "QUICK": "yes", "RUN_ARGUMENTS": "--hours 8"}, ""),
    ({"SHARD": "1/1", "SHARDS": "4", "RUN_ARGUMENTS": "--hours 8"}, ""),
    ({"TORCH_INDEX": "/none"}, "TORCH_INDEX=/none: there is no such folder"),
    ({"TORCH_INDEX": "none"}, "TORCH_INDEX=none: give an address, or a folder"),
    ({"TORCH_INDEX": "https://me:secret@host/simple"}, "put it into ~/.netrc"),
    ({"TORCH_REPO": "/none"}, "TORCH_REPO=/none: there is no such folder"),
    ({"BISECT_REPO": "/none"}, "BISECT_REPO=/none: there is no such folder"),
    ({"BISECT_RECIPE": "gti"}, "no recipe gti; there are: command git"),
    ({"BISECT_RECIPE": "none.toml:mylib"}, "none.toml:mylib; there are: command git"),
    ({"BISECT_RECIPE": "nightly,git"}, ""),
    ({"BISECT_RECIPE": "pypi:mylib"}, ""),
    ({"BISECT_RECIPE": "own.toml"}, ""),  # of the folder where the command is typed
    ({"BISECT_RECIPE": "own.toml:mylib"}, ""),
    ({"REPO": "x"}, "REPO=x: give it as OWNER/NAME"),
    ({"ISSUE": "#7"}, "ISSUE=#7: give the number"),
    ({"NEW_ISSUE_ON": "all"}, "NEW_ISSUE_ON=all: here there is only regression"),
    ({"PERFDASH_DB": "/tmp"}, "PERFDASH_DB=/tmp is a folder"),
    ({"POST": "yes"}, "POST=yes needs REPO=OWNER/NAME and ISSUE=NUMBER"),
    (POST, "needs a token in the variable GITHUB_TOKEN"),
    ({"BISECT": "maybe"}, "BISECT=maybe is none of yes, no"),
    ({"BISECT": "yes", "UNDER_TEST": "mylib==1.2"}, "needs a clone of the library under test"),
    ({"EVERY": "daily"}, "EVERY=daily: give it as 24h, 7d or 90m"),
    ({"WEBHOOK": "true"}, "WEBHOOK=true is none of yes, no"),
    ({"WEBHOOK": "yes"}, "needs the chat's address in the variable PERFDASH_WEBHOOK"),
    ({"MAIL_TO": "a@example.org"}, "needs the mail server in the variable PERFDASH_SMTP"),
]
# One bash for all: a line of NAME=VALUE for each, then what it prints and its exit code. Options of perfdash
# run are checked below.
CHECK = """
here="$1" && . ci/nightly/common.sh && . ci/nightly/parameters.sh && check_run_options() { :; }
while IFS=$'\\t' read -r -a pairs; do
  code=0
  (for pair in "${pairs[@]}"; do export "${pair?}"; done
    resolve_paths && check_parameters && check_paths) 2>&1 || code=$?
  printf '\\v%s\\f' "$code"
done
"""


@pytest.mark.slow
def test_parameters_are_checked_by_their_value(tmp_path: Path) -> None:
    (tmp_path / "own.toml").touch()
    lines = ("\t".join(f"{name}={value}" for name, value in more.items()) + "\n" for more, _ in CHECKED)
    done = subprocess.run(
        ["bash", "-c", CHECK, "bash", str(tmp_path)], input="".join(lines), cwd=CHECKOUT,
        env=variables(tmp_path), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    answers = [answer.split("\v") for answer in done.stdout.split("\f")[:-1]]
    assert len(answers) == len(CHECKED), done.stderr
    for (more, why), (said, code) in zip(CHECKED, answers, strict=True):
        assert (why in said, code) == (True, "2" if why else "0"), (more, said)
        assert why or not said, more


@pytest.mark.parametrize(("words", "why"), [
    ("--wait 2h --batch-size 1,8 --retries=3 --strict --jobs auto --dtype amp --suite timm --wide", ""),
    ("--cell-minuts 30", "did you mean --cell-minutes?"),
    ("--bisect-hour=3", "did you mean --bisect-hours?"),
    ("--backendd inductor", "did you mean --backend?"),
    ("--jobs", "--jobs needs a value"),
    ("--sample-time long", "did you mean"),
    ("--training=yes timm", "--training"),
    ("--processes many", "give a whole number"),
    ("timm", "'timm' is not an option"),
    ("--suite tim", "did you mean timm?"),
    ("--suite timm,torchbench-checkout", ""),
    ("--dtype float31", "did you mean float32?"),
    ("--allocator stedy", "did you mean steady?"),
    ("--jobs 2 --python python3.12", "--python: a night measures the torch of TORCH"),
    ("--python=python3.12", "--python: a night measures the torch of TORCH"),
])  # fmt: skip
def test_options_of_a_run_are_checked_before_the_night_begins(words: str, why: str) -> None:
    complaint = runpy.run_path(str(CHECKOUT / "ci/nightly/check_run_options.py"))["complaint"]
    said = complaint(["CELL_MINUTES", "BISECT_HOURS"], words.split())
    assert why in said
    assert why or not said


def test_options_that_parameters_become_are_checked_too(tmp_path: Path) -> None:
    """By the same table; a file of the user's own may be on another machine, so its name is not checked."""
    more = {
        "SUITES": "timm,mine.toml", "DTYPES": "float32,amp", "CONFIGURATIONS": "default,own.toml",
        "RUN_ARGUMENTS": "--jobs 2",
    }  # fmt: skip
    script = (
        'here="$1" && . ci/nightly/common.sh && . ci/nightly/parameters.sh\n'
        'refuse_wrong_options() { echo "$*"; }\ncheck_run_options'
    )
    done = subprocess.run(
        ["bash", "-c", script, "bash", str(tmp_path)], cwd=CHECKOUT, env=variables(tmp_path, **more),
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.stdout == "-- --suite timm --dtype float32 --dtype amp --configuration default --jobs 2\n"


def test_the_first_stage_of_jenkins_takes_what_is_right(stage):
    """Its credentials are not in the environment there: only their names."""
    more = {**POST, "GITHUB_CREDENTIAL": "github", "WEBHOOK": "yes", "WEBHOOK_CREDENTIAL": "chat"}
    done = script(stage, "nightly/check.sh", "SUITES", **more)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("words", "more", "why"), [
    ([], POST, "GITHUB_CREDENTIAL"),
    ([], {"WEBHOOK": "yes"}, "WEBHOOK_CREDENTIAL"),
    ([], {"PAIRS": "3"}, "PAIRS=3: give a number from 4"),
    ([], {"CELL_MINUTES": "0"}, "CELL_MINUTES=0: give a number from 1"),
    ([], {"DB": "postgresql://me:hidden@host/perf"}, "DB_CREDENTIAL"),
    (["BASE", "CHANGE"], {"BASE": "v1"}, "CHANGE is empty"),
    ([], {"RUN_ARGUMENTS": "--jobs auto --hours 10"}, "--hours needs the history, which cells do not have"),
    ([], {"RUN_ARGUMENTS": "--hours=10"}, "--hours needs the history, which cells do not have"),
    ([], {"RUN_ARGUMENTS": "--hours=10", "SHARDS": "4"}, "needs the history, which cells do not have"),
    ([], {"RUN_ARGUMENTS": "--fail-on failure,regression"}, "give FAIL_ON=regression"),
])  # fmt: skip
def test_the_first_stage_of_jenkins_refuses_what_is_wrong(stage, words, more, why):
    done = script(stage, "nightly/check.sh", *words, **more)
    assert done.returncode == 2, done.stderr
    assert why in done.stderr
    assert "hidden" not in done.stderr


@pytest.mark.parametrize(("settings", "more", "why"), [
    ("[run]\nhours = 10\n", {}, "hours=10 needs the history"),
    ("", {"PERFDASH_HOURS": "8"}, "hours=8 needs the history"),
    ('[run]\nfail_on = [\n  "failure",\n  "regression",\n]\n', {}, "give FAIL_ON=regression"),
    ("", {"PERFDASH_FAIL_ON": "regression"}, "give FAIL_ON=regression"),
    ('[run]\nfail_on = ["regression"]\n', {"PERFDASH_FAIL_ON": "failure"}, ""),
    ("[run]\nhours = 10\n", {"NIGHT": ""}, ""),  # a comparison or bisection, which has no cells
])  # fmt: skip
def test_a_nightly_of_jenkins_refuses_settings_that_need_the_history(stage, settings, more, why):
    check = checkout_with(stage.home / "checkout", settings) / "ci/nightly/check.sh"
    env = {**stage.env, "NIGHT": "runs/nightly/build-1", **more}
    done = subprocess.run([check], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == (2 if why else 0), done.stderr
    assert why in done.stderr


@pytest.mark.parametrize("jenkinsfile", ["Jenkinsfile", "ci/Jenkinsfile.compare"])
def test_a_job_has_the_parameters_by_which_torch_is_built(jenkinsfile: str) -> None:
    """Jenkins drops a parameter that a pipeline does not declare: a commit of torch could not be given."""
    text = (CHECKOUT / jenkinsfile).read_text()
    assert [name for name in ("TORCH", "TORCH_INDEX", "TORCH_REPO") if f"(name: '{name}'," not in text] == []
