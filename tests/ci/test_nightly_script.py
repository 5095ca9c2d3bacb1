"""ci/nightly.sh: order, what depends on what, what it is called with. perfdash only pretends."""

from __future__ import annotations

import fcntl
import json
import subprocess

import pytest

from tests.ci.nights import NIGHTLY
from tests.ci.stage import Stage

pytestmark = pytest.mark.slow

ALL = ["setup", "torch", "host", "measure", "merge", "detect", "confirm", "report", "post", "bisect",
       "publish", "notify"]  # fmt: skip
POST = {"POST": "yes", "REPO": "o/r", "ISSUE": "7", "GITHUB_TOKEN": "ghp_hidden"}


@pytest.fixture
def stage(tmp_path):
    return Stage(tmp_path)


def test_a_night_in_order(stage):
    secrets = dict.fromkeys(("PERFDASH_DB", "PERFDASH_SMTP_PASSWORD", "PERFDASH_WEBHOOK"), "s3cret")
    done = stage.night(**{**POST, **secrets, "GITHUB_TOKEN": "ghp_s3cret"}, EVERY="24h", WEBHOOK="yes",
                       MAIL_TO="a@example.org", PERFDASH_SMTP="localhost",
                       SITE_DIR=str(stage.home / "site"))  # fmt: skip
    assert done.code == 0, done.out
    assert done.stages() == dict.fromkeys(ALL, "0")
    calls = stage.calls()
    names = list(dict.fromkeys(call.split()[0] for call in calls))
    assert names == ["nightly", "run", "regressions", "report", "post", "site", "notify"]
    assert calls[-1].startswith("nightly end --state ok")
    assert next(call for call in calls if call.startswith("nightly begin")).count("--expect") == 3
    assert len([call for call in calls if call.startswith("post")]) == 1, "told once: nothing was bisected"
    order = [line[4:] for line in done.out.splitlines() if line.startswith("--- ")]
    assert order == ALL, "it is told after what it suspects was measured again"
    assert (done.folder / "run").read_text() == f"{stage.home}/runs/run1\n"
    texts = "".join(path.read_text() for path in done.folder.rglob("*") if path.is_file())
    assert "ghp_s3cret" not in texts + done.out
    # Each stage gets the secrets that it uses: names of variables, by what was called.
    seen: dict[str, set[str]] = {}
    for line in (stage.home / "secrets").read_text().splitlines():
        name, *variables = line.split()
        seen.setdefault(name, set()).update(variables)
    history = {"PERFDASH_DB"}
    assert seen.pop("post") == {"GITHUB_TOKEN", *history}
    assert seen.pop("notify") == {"PERFDASH_SMTP_PASSWORD", "PERFDASH_WEBHOOK", *history}
    assert seen == dict.fromkeys(("heartbeat", "run", "regressions", "report", "site"), history)


def test_as_it_was_before_there_were_nights(stage):
    """ci/nightly.sh with options of perfdash run: sets up, measures, prints."""
    done = stage.night("--quick", "--jobs", "auto", "--env", "A=b c", "--fail-on=accuracy")
    assert done.code == 0, done.out
    calls = stage.calls()
    (run,) = [call for call in calls if call.startswith("run")]
    assert "--suite torchbench,huggingface,timm --out" in run
    assert run.endswith("--jobs auto --env A=b c --fail-on=accuracy")
    assert " --quick " in run
    assert not [call for call in calls if call.startswith(("post", "site", "notify", "nightly", "confirm"))]


def test_a_model_of_ones_own_needs_no_suite(stage):
    more = {"PERFDASH_NIGHTLY": str(stage.home / "night"), "RUN_ARGUMENTS": "--model net.py:make"}
    assert stage.script("measure", **more).returncode == 0
    (run,) = stage.calls("run")
    assert "--suite" not in run
    assert run.endswith("--model net.py:make")


def test_paths_are_meant_where_the_command_is_typed(stage):
    """Also those of a night that is gone on with."""
    done = stage.night("--out", "a b", "--site-dir", "site")
    assert done.code == 0, done.out
    assert f"--out {stage.home}/a b " in stage.calls("run")[0]
    (night,) = (stage.home / "a b" / "nightly").glob("2*")
    assert (night / "run").read_text() == f"{stage.home}/a b/run1\n"
    again = stage.night("--resume", str(night), "--only", "publish", "--site-dir", "other", OUT="runs")
    assert again.code == 0, again.out
    assert stage.calls("site") == [f"site --to {stage.home}/other --out {stage.home}/a b"]


def test_a_refused_post_loses_nothing_and_is_tried_again_alone(stage):
    fail = stage.fails("post")
    done = stage.night(**POST, SITE_DIR="site")
    assert done.code == 3
    assert done.stages() == {**dict.fromkeys(ALL, "0"), "post": "3"}
    assert "post failed with exit code 3: post is told to fail" in done.out
    assert stage.calls("site")
    fail.unlink()
    again = stage.night("--resume", "last", GITHUB_TOKEN="ghp_hidden")
    assert again.code == 0, again.out
    assert {call.split()[0] for call in stage.calls()} == {"post"}
    assert again.stages() == dict.fromkeys(ALL, "0")


def test_a_cell_that_fails_does_not_stop_the_other(stage):
    fail = stage.home / "fail-run-cpu"
    fail.touch()
    done = stage.night("--devices", "cpu,cuda", "--threads", "1,4", "--env", "A_TOKEN=b c")
    assert done.code == 3
    assert [call.split("--device ")[1][:14] for call in stage.calls("run")] == [
        "cpu --threads ", "cpu --threads ", "cuda --threads",
    ]  # fmt: skip
    assert done.stages()["report"] == "0"
    assert "cpu-1: exit code 3; the other runs continue" in done.out
    fail.unlink()
    again = stage.night("--resume", "last")
    assert again.code == 0, again.out
    calls = stage.calls("run")
    assert [call.split(" --out")[0] for call in calls] == [
        f"run --resume {stage.home}/runs/run1", f"run --resume {stage.home}/runs/run2",
    ]  # fmt: skip
    assert all(call.endswith(" --env A_TOKEN=b c") for call in calls), "a run does not keep it"
    assert (again.folder / "runs").read_text().count("\n") == 3


def test_without_torch_nothing_is_measured_and_the_team_is_notified(stage):
    done = stage.night(
        TORCH="abcdef0", TORCH_REPO=str(stage.home), SITE_DIR="site", EVERY="24h",
        WEBHOOK="yes", PERFDASH_WEBHOOK="https://hidden",
    )  # fmt: skip
    assert "hidden" not in done.out + done.text("settings")
    assert done.code == 3
    assert "has no commit abcdef0" in done.out
    assert done.stages() == {
        "setup": "0", "torch": "2", "host": "0", "publish": "0", "notify": "0",
    }  # fmt: skip
    calls = stage.calls()
    assert not [call for call in calls if call.startswith("run")]
    assert [call for call in calls if call.startswith("notify --broken torch failed with exit code 2")]
    assert calls[-1].startswith("nightly end --state failed --why torch failed")


def test_without_a_heartbeat_the_night_goes_on(stage):
    """The history may be away for a while; runs are kept without it."""
    stage.fails("heartbeat")
    done = stage.night(EVERY="24h")
    assert done.code == 3
    assert done.stages() == {**dict.fromkeys(ALL, "0"), "setup": "3"}
    assert "setup failed with exit code 3: heartbeat is told to fail" in done.out


def test_no_number_is_worse_than_a_gate(stage):
    """A run that leaves nothing, with whatever exit code."""
    perfdash = stage.venv / "bin" / "perfdash"
    perfdash.write_text("#!/bin/sh\nexit 1\n")
    done = stage.night()
    assert done.code == 3, done.out
    assert done.stages()["measure"] == "3"
    again = stage.night("--only", "report")
    assert again.code == 3
    assert "report: left out, nothing was measured" in again.out


def test_the_history_is_remembered_unless_it_holds_a_password(stage):
    done = stage.night("--db", "my.db")
    assert f"PERFDASH_DB={stage.home}/my.db" in done.text("settings")
    secret = "postgresql://me:hidden@host/perf"
    done = stage.night(PERFDASH_DB=secret)
    assert "hidden" not in done.text("settings") + done.out
    assert (done.folder / "settings").stat().st_mode & 0o777 == 0o600, "options of perfdash run are in it"


def test_a_gate_exits_with_one_and_is_no_breakage(stage):
    """The news of the night says what is worse; nobody is told that the nightly broke."""
    stage.fails("report", 1)
    done = stage.night(FAIL_ON="regression", EVERY="24h", WEBHOOK="yes", PERFDASH_WEBHOOK="https://hidden")
    assert done.code == 1, done.out
    assert done.stages()["report"] == "1"
    assert "report: a gate failed" in done.out
    calls = stage.calls()
    assert [call.partition(" --")[0] for call in calls if call.startswith("notify")] == [
        f"notify {stage.home}/runs/run1"
    ]
    assert calls[-1].startswith("nightly end --state ok --job")


def test_a_merged_run_that_lacks_cases_is_reported(stage):
    (stage.home / "incomplete").touch()
    done = stage.night(SHARDS="2")
    assert done.code == 3
    assert done.stages() == {**dict.fromkeys(ALL, "0"), "merge": "3"}
    assert (done.folder / "run").read_text() == f"{stage.home}/runs/whole1\n"


def test_of_what_is_measured_several_times_the_last_is_reported(stage):
    done = stage.night(BASE_RUNS="3", **POST)
    assert done.code == 0, done.out
    assert len(stage.calls("run")) == 3
    assert (done.folder / "run").read_text() == f"{stage.home}/runs/run3\n"


def alert(number, metric, change, **more):
    case = {"suite": "own", "model": "m", "device": "cpu"}
    return {"id": number, "testbed_id": 1, "direction": "worse", "state": "confirmed", "kind": "metric",
            "metric": metric, "change": change, "case": case, "details": {}, **more}  # fmt: skip


def test_a_stage_that_fails_without_a_word_has_a_reason(stage):
    (stage.venv / "bin" / "perfdash").write_text("#!/bin/sh\nexit 3\n")
    done = stage.night("--every", "24h", "--site-dir", "site")
    assert "setup failed with exit code 3: [ci/nightly/heartbeat.sh, line " in done.out
    assert "publish failed with exit code 3: [ci/nightly/publish.sh, line " in done.out
    (stage.venv / "bin" / "perfdash").write_text("#!/bin/sh\necho the disk is full\nexit 3\n")
    again = stage.night("--resume", "last", "--only", "publish")
    assert "publish failed with exit code 3: the disk is full\n" in again.out


def test_what_is_bisected(stage):
    suite = stage.home / "own.toml"
    suite.write_text('name = "own"\n')
    other = {"suite": "timm", "model": "n", "device": "cpu"}
    alerts = [
        alert(1, "backend_ms", 0.5), alert(2, "eager_ms", 0.45), alert(3, "compilation_cpu_s", 0.9),
        alert(4, "eager_ms", 0.2, case=other), alert(5, "backend_ms", 0.6, case=other),
        alert(6, "eager_ms", 0.9, case={**other, "model": "new"}, state="new"),
        alert(7, "eager_ms", 0.9, case={**other, "model": "half"},
              details={"bisected": {"word": "not finished", "finished": False}}),
        alert(10, "eager_ms", 0.9, case={**other, "model": "elsewhere"}, testbed_id=2),
        alert(8, "eager_ms", 0.9, case={**other, "model": "known"}, details={"bisected": {"word": "found"}}),
        alert(9, None, None, case={**other, "model": "broke"}, kind="status"),
    ]  # fmt: skip
    (stage.home / "alerts.json").write_text(json.dumps(alerts))
    done = stage.night(
        SUITES="own.toml,timm", BISECT="yes", BISECT_RECIPE="git", BISECT_REPO=str(stage.home),
        BISECT_MOST="3",
    )  # fmt: skip
    assert done.code == 0, done.out
    calls = stage.calls("bisect")
    assert [call.split()[2] for call in calls] == ["9", "7", "5"]
    # What it found is told in the same comment.
    assert done.stages() == {**dict.fromkeys(ALL, "0"), "report2": "0", "post2": "0"}
    stage.calls()
    (stage.home / "alerts.json").write_text(json.dumps(alerts[:2]))
    stage.night("--only", "bisect")
    (call,) = stage.calls("bisect")
    assert call.startswith("bisect --alert 2 --recipe git ")
    assert f"--suite {suite} --repo {stage.home}" in call


@pytest.mark.parametrize(("recipe", "place", "has_index"), [
    ("nightly", "/srv", True), ("nightly,pytorch-source", "", True), ("wheels:torch", "/srv", True),
    ("own.toml", "", True), ("pypi:mylib", "", False), ("wheels:mylib", "/srv", False),
    ("wheels:mylib", "", True), ("git", "", False), ("library.toml", "", False),
])  # fmt: skip
def test_the_index_of_torch_is_for_recipes_of_torch(stage, recipe, place, has_index):
    """With --wheels nothing comes from another index; without any, `wheels` finds nothing."""
    for name, package in (("own", "torch"), ("library", "mylib")):
        (stage.home / f"{name}.toml").write_text(f'[versions]\npackage = "{package}"\n')
    (stage.home / "alerts.json").write_text(json.dumps([alert(1, "backend_ms", 0.5)]))
    if recipe.endswith(".toml"):
        recipe = f"{stage.home}/{recipe}"
    more = {"BISECT": "yes", "BISECT_RECIPE": recipe, "TORCH_INDEX": "https://host/whl",
            "BISECT_REPO": str(stage.home), "PERFDASH_BISECT_WHEELS": place}  # fmt: skip
    done = stage.script("bisect", PERFDASH_NIGHTLY=night_of_run1(stage, stage.home / "night"), **more)
    assert done.returncode == 0, done.stderr
    (call,) = stage.calls("bisect")
    assert f" --recipe {recipe} " in call
    assert (" --wheels https://host/whl" in call) == has_index


def begun(folder, number, model="m"):
    """A bisection that was not finished, as its journal begins."""
    folder.mkdir(parents=True)
    event = {"event": "begun", "alert": number, "case": {"model": model}}
    (folder / "journal.jsonl").write_text(json.dumps(event) + "\n{}\n")


def night_of_run1(stage, folder):
    """The path of a folder, as that of a night that measured run1."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run").write_text(f"{stage.home}/runs/run1\n")
    return str(folder)


@pytest.mark.parametrize(
    ("where", "state"),
    [("runs/bisections", "open"), ("runs/nightly/build-6/out/bisections", "confirmed")],
)
def test_a_bisection_that_was_not_finished_is_resumed_by_the_next_night(stage, where, state):
    """Under Jenkins it lies with the build that began it."""
    begun(stage.home / where / "2026-11-20_x", 1)
    begun(stage.home / where / "2026-11-21_x", 1)
    begun(stage.home / where / "2026-11-22_x", 1, model="another")
    begun(stage.home / where / "2026-11-23_x", 2)
    (stage.home / "alerts.json").write_text(json.dumps([alert(1, "backend_ms", 0.5, state=state)]))
    own = stage.home / "runs" / "nightly" / "build-7" / "out"
    more = {"BISECT": "yes", "BISECT_RECIPE": "nightly"}
    if "build" in where:
        more |= {"OUT": str(own), "PERFDASH_NIGHTLY": night_of_run1(stage, own.parent / "found-cpu")}
    else:
        more |= {"PERFDASH_NIGHTLY": night_of_run1(stage, stage.home / "night")}
    words = [NIGHTLY.parent / "nightly" / "bisect.sh"]
    done = subprocess.run(words, env={**stage.env, **more}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (call,) = stage.calls("bisect")
    out = own if "build" in where else stage.home / "runs"
    assert call == f"bisect --resume 2026-11-21_x --out {out}"
    assert (out / "bisections" / "2026-11-21_x").is_dir()
    # What cannot be resumed begins anew.
    stage.fails("bisect", 2)
    subprocess.run(words, env={**stage.env, **more}, capture_output=True, text=True, timeout=300)
    assert [call.split()[1] for call in stage.calls("bisect")] == ["--resume", "--alert"]
    # Nor does a night repeat what failed in an earlier one.
    subprocess.run(words, env={**stage.env, **more}, capture_output=True, text=True, timeout=300)
    assert len(stage.calls("bisect")) == (0 if state == "open" else 2)


@pytest.mark.parametrize(("seconds", "limits"), [(3500, ["3600", "100"]), (4000, ["3600"])])
def test_a_bisection_that_cannot_be_resumed_begins_anew_in_the_hours_that_are_left(stage, seconds, limits):
    """As where an end can no longer be measured, which is known only after a build of hours."""
    begun(stage.home / "runs" / "bisections" / "2026-11-21_x", 1)
    (stage.home / "alerts.json").write_text(json.dumps([alert(1, "backend_ms", 0.5, state="open")]))
    perfdash, tools, clock = stage.venv / "bin" / "perfdash", stage.home / "tools", stage.home / "clock"
    perfdash.rename(perfdash.with_name("pretended"))
    clock.write_text("1000")
    scripts = {
        perfdash: f'case "$*" in *--resume*) echo {1000 + seconds} >{clock}; exit 2 ;; esac\n'
        'exec "${0%perfdash}pretended" "$@"',
        tools / "date": f"exec cat {clock}",
        tools / "timeout": f'echo "$4" >>{stage.home}/limits\nshift 4\nexec "$@"',
    }
    for path, text in scripts.items():
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    night = night_of_run1(stage, stage.home / "night")
    more = {"BISECT": "yes", "BISECT_RECIPE": "nightly", "BISECT_HOURS": "1"}
    done = stage.script("bisect", PERFDASH_NIGHTLY=night, **more)
    assert done.returncode == 0, done.stderr
    assert (stage.home / "limits").read_text().split() == limits
    assert ("BISECT_HOURS=1 are over" in done.stdout + done.stderr) == (len(limits) == 1)


def test_the_quick_models_are_not_divided_into_more_shards_than_there_are(stage):
    done = stage.script("measure", PERFDASH_NIGHTLY=str(stage.home / "night"), QUICK="yes", SHARDS="4")
    assert done.returncode == 0, done.stderr
    (call,) = stage.calls("run")
    assert "--shard" not in call


def test_lists_are_separated_by_commas_or_spaces_in_each_stage(stage):
    """Jenkins gives its stages the parameters as they were typed."""
    own = stage.home / "own.toml"
    own.write_text('name = "own"\nloader = "python"\n')
    (stage.home / "alerts.json").write_text(
        json.dumps([alert(1, "backend_ms", 0.5, case={"suite": "own", "model": "m"})])
    )
    more = {"SUITES": f"timm, {own}", "CONFIGURATIONS": "default freezing", "DTYPES": "float32 amp"}
    done = stage.script("measure", PERFDASH_NIGHTLY=str(stage.home / "night"), **more)
    assert done.returncode == 0, done.stderr
    (call,) = stage.calls("run")
    assert f"--suite timm,{own} --dtype float32,amp --configuration default,freezing " in call
    night = night_of_run1(stage, stage.home / "night")
    done = stage.script("bisect", PERFDASH_NIGHTLY=night, BISECT="yes", BISECT_RECIPE="nightly", **more)
    assert done.returncode == 0, done.stderr
    (call,) = stage.calls("bisect")
    assert f"--suite {own} " in call


def test_a_bisection_of_another_build_is_resumed_on_a_file_system_without_locks(stage):
    begun(stage.home / "runs" / "nightly" / "build-6" / "out" / "bisections" / "2026-11-21_x", 1)
    (stage.home / "alerts.json").write_text(json.dumps([alert(1, "backend_ms", 0.5, state="open")]))
    flock = stage.home / "tools" / "flock"
    flock.write_text("#!/bin/sh\necho 'flock: No locks available' >&2\nexit 71\n")
    flock.chmod(0o755)
    out = stage.home / "runs" / "nightly" / "build-7" / "out"
    night = night_of_run1(stage, out.parent / "found-cpu")
    more = {"BISECT": "yes", "BISECT_RECIPE": "nightly", "OUT": str(out), "PERFDASH_NIGHTLY": night}
    done = stage.script("bisect", **more)
    assert done.returncode == 0, done.stderr
    assert (out / "bisections" / "2026-11-21_x").is_dir()


def test_a_bisection_that_is_running_is_left_alone(stage):
    folder = stage.home / "runs" / "bisections" / "2026-11-20_x"
    begun(folder, 1)
    (stage.home / "alerts.json").write_text(json.dumps([alert(1, "backend_ms", 0.5, state="open")]))
    night = night_of_run1(stage, stage.home / "night")
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = stage.script("bisect", PERFDASH_NIGHTLY=night, BISECT="yes", BISECT_RECIPE="nightly")
    assert (done.returncode, stage.calls("bisect")) == (0, [])
    assert f"Alert 1: {folder} is running" in done.stdout + done.stderr


def test_dry_run_measures_nothing(stage):
    case = {"suite": "s", "model": "m", "dtype": "float32"}
    known_by = ("suite", "history", "guess")
    plan = {
        "cases": [{"case": case, "skip_reason": None, "expected_by": by} for by in known_by],
        "shards": [{"shard": "1/1", "cases": 1, "hours": 2.0}], "hours": {"work": 2.0},
    }  # fmt: skip
    perfdash = stage.venv / "bin" / "perfdash"
    perfdash.write_text(f"#!/bin/sh\necho \"$@\" >>{stage.home}/calls\necho '{json.dumps(plan)}'\n")
    done = stage.night("--dry-run", "--devices", "cpu,cuda", "--base-runs", "2")
    assert done.code == 0, done.out
    assert "About 8.0 hours of work; on 1 machine the last is done after about 8.0 hours" in done.out
    origin = done.out.split("Where the hours come from: ")[1]
    assert [part.split()[1] for part in origin.removeprefix("cases ").splitlines()[0].split("; ")] == [
        "as", "as", "unknown,"
    ], origin  # fmt: skip
    calls = stage.calls()
    assert all("--dry-run --json" in call for call in calls)
    assert not any("--line" in call for call in calls)
    # With --hours the cases are chosen by the alerts and the noise of the line's own nights.
    done = stage.script("outlook", LINE="feature", RUN_ARGUMENTS="--hours 10")
    assert done.returncode == 0, done.stderr
    (call,) = stage.calls("run")
    assert "--line feature" in call
    assert "--hours 10 --dry-run" in call
    assert not (stage.home / "runs" / "nightly").exists()


def test_a_disk_that_becomes_read_only_is_told(stage):
    """No log can be opened any more, as here, where folders have the names of the logs."""
    perfdash = stage.venv / "bin" / "perfdash"
    sabotage = """    for night in os.listdir(option("--out") + "/nightly"):
        for stage in ("merge", "detect", "confirm", "report", "post", "notify"):
            if night[0] != ".":
                os.mkdir(f"{option('--out')}/nightly/{night}/{stage}.log")
"""
    saved = '    print("Saved in", folder)\n'
    perfdash.write_text(perfdash.read_text().replace(saved, saved + sabotage, 1))
    stage.fails("regressions")
    done = stage.night(**POST, EVERY="24h", WEBHOOK="yes", PERFDASH_WEBHOOK="https://hidden")
    assert done.code == 3, done.out
    calls = stage.calls()
    assert [call.split()[0] for call in calls if call.startswith(("report", "post"))] == [
        *["report"] * 6,
        "post",
    ]
    why = f"detect failed with exit code 3: {done.folder}/detect.log cannot be written"
    assert f"notify --broken {why}" in "\n".join(calls)
    assert calls[-1].startswith(f"nightly end --state partial --why {why} ")
    assert "regressions is told to fail" in done.out, "what has no log is shown"


@pytest.mark.parametrize("ends", ["full", "head"])
def test_a_night_whose_output_nobody_takes_goes_on(stage, ends):
    """The disk of `>>nightly.log` is full, or `| head` has seen enough."""
    shown = "2>&1 | head -1" if ends == "head" else ">/dev/full 2>&1"
    done = subprocess.run(
        ["bash", "-c", f"env --default-signal=INT {NIGHTLY} {shown}"], cwd=stage.home,
        env={**stage.env, "EVERY": "24h"}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=400,
    )  # fmt: skip
    (night,) = (stage.home / "runs" / "nightly").glob("2*")
    assert {path.stem for path in night.glob("*.done")} == set(ALL), done.stderr
    assert stage.calls()[-1].startswith("nightly end --state ok")


def test_a_file_system_without_locks_has_nights(stage):
    flock = stage.home / "tools" / "flock"
    flock.write_text("#!/bin/sh\necho 'flock: No locks available' >&2\nexit 71\n")
    flock.chmod(0o755)
    done = stage.night(STOP_COMMAND="true")
    assert done.code == 0, done.out
    assert done.stages() == {**dict.fromkeys(ALL, "0"), "stop": "0"}


def test_the_reason_of_a_stage_may_be_no_utf8(stage):
    """A compiler that writes Latin-1."""
    words = r"printf 'all is well\ncaf\351 is closed\n'"
    (stage.venv / "bin" / "perfdash").write_text(f"#!/bin/sh\n{words}\nexit 3\n")
    done = stage.night("--every", "24h", LC_ALL="C.UTF-8")
    assert "setup failed with exit code 3: caf\ufffd is closed\n" in done.out
