"""ci/nightly.sh gone on with: interrupted, killed, once more from a stage; and what confirm keeps as good.

perfdash only pretends.
"""

from __future__ import annotations

import json
import shlex
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from perfdash.files import dumps
from perfdash.records import Status, to_json
from tests.ci.stage import Stage
from tests.report.results import failed

pytestmark = pytest.mark.slow


@pytest.fixture
def stage(tmp_path):
    return Stage(tmp_path)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """After a night; only for nights that leave all as it is, and to be copied for others."""
    stage = Stage(tmp_path_factory.mktemp("measured"))
    stage.night()
    stage.calls()
    return stage


def wait_for(path):
    for _ in range(8000):
        if path.exists():
            return
        time.sleep(0.05)
    raise AssertionError(f"{path} never came")


def test_what_failed_before_is_not_forgotten(stage):
    (stage.home / "fail-run-cpu").touch()
    night = stage.night(EVERY="24h", OUT="my runs")
    stage.calls()
    *_, option, folder = shlex.split(night.out.splitlines()[-1])  # To try what failed again: ...
    again = stage.night(
        option, folder, "--from", "publish", "--webhook", "yes", PERFDASH_WEBHOOK="https://hidden"
    )
    assert (option, again.code) == ("--resume", 3)
    assert "measure failed with exit code 3, before" in again.out
    assert stage.calls()[-1].startswith("nightly end --state partial --why measure failed")


def test_where_nothing_was_measured_nothing_becomes_good(stage):
    """Also by a stage that is called by itself."""
    night = stage.home / "night"
    night.mkdir()
    done = stage.script("confirm", PERFDASH_NIGHTLY=str(night))
    assert done.returncode == 3
    assert "nothing was measured" in done.stderr
    assert not list((stage.home / "environments").glob("good-*"))


def write(path, *results):
    path.write_text("".join(dumps(to_json(result)) + "\n" for result in results))


@pytest.mark.parametrize("known", [False, True])
def test_a_night_that_the_machine_lost_is_neither_good_nor_doubted(stage, known):
    good = a_good_build_before(stage) if known else stage.home / "environments" / "good-nightly"
    before = good.read_text() if known else None
    (stage.home / "night").mkdir()
    (stage.home / "night" / "run").write_text(f"{stage.home}\n")
    results = stage.home / "results.jsonl"
    lost = failed("lost", Status.INFRA_ERROR, "compile", "the machine was off")
    left_out = failed("left_out", Status.SKIPPED, None, "needs a GPU")
    write(results, lost, left_out)
    done = stage.script("confirm", PERFDASH_NIGHTLY=str(stage.home / "night"))
    assert (done.returncode, "Nothing was measured tonight" in done.stdout) == (0, True), done.stderr
    assert (good.read_text() if good.exists() else None) == before
    assert not stage.calls()
    # Measured again, it passed: by itself as a retry, or resumed as a second record.
    attempt = {"started": "t", "status": "infra_error", "error": None}
    write(results, lost, replace(lost, status=Status.PASS, attempts=[attempt]))
    assert stage.script("confirm", PERFDASH_NIGHTLY=str(stage.home / "night")).returncode == 0
    assert good.read_text() != before


@pytest.mark.parametrize(("text", "good_one"), [
    ("Nothing to measure again", False),
    ("2 cases may have changed; 2 are measured again\nm: latency: confirmed, suspected +9%", False),
    ("2 cases may have changed; 1 are measured again\nm: latency: confirmed, suspected +9%", True),
    ("1 cases may have changed; 1 are measured again\nm: latency: cannot tell (8 pairs)", True),
])  # fmt: skip
def test_the_good_one_stays_while_something_is_open(stage, text, good_one):
    good, old = a_good_build_before(stage), stage.home / "old"
    perfdash = stage.venv / "bin" / "perfdash"
    perfdash.write_text(perfdash.read_text() + f"if name == 'confirm': print({text!r})\n")
    night = stage.home / "night"
    night.mkdir()
    (night / "run").write_text("run1\n")
    for _ in range(2 if good_one else 1):  # a night that is gone on with is one night
        done = stage.script("confirm", PERFDASH_NIGHTLY=str(night))
        assert done.returncode == 0, done.stderr
    sides = ["--good-python", str(old), "--python", f"{stage.venv}/bin/python"]
    words = [["confirm", "run1", *sides]] * (2 if good_one else 1)
    assert [call.split()[:6] for call in stage.calls()] == words
    assert (good.read_text().splitlines()[0] == str(old)) == good_one
    if good_one:
        assert good.read_text().splitlines()[1] == "1"


@pytest.mark.parametrize("refusal", [
    "--good-python a has torch of commit c0ffee, which no night before the changes measured",
    "--good-python a and b have one build, though torch changed between the nights: give an interpreter that",
])  # fmt: skip
@pytest.mark.parametrize("code", [2, 0], ids=["of all slots", "of some slots"])
def test_a_good_build_that_cannot_decide_the_changes_only_leaves_them_open(stage, refusal, code):
    good = a_good_build_before(stage)
    perfdash = stage.venv / "bin" / "perfdash"
    perfdash.write_text(
        perfdash.read_text()
        + f"if name == 'confirm': print({refusal!r}, file=sys.stderr); sys.exit({code})\n"
    )
    (stage.home / "night").mkdir()
    (stage.home / "night" / "run").write_text("run1\n")
    done = stage.script("confirm", PERFDASH_NIGHTLY=str(stage.home / "night"))
    assert done.returncode == 0, done.stderr
    assert good.read_text().splitlines()[:2] == [str(stage.home / "old"), "1"], "tonight's is doubted"


def a_good_build_before(stage):
    """The interpreter of the last good night, which confirm compares with."""
    good = stage.home / "environments" / "good-nightly"
    good.parent.mkdir()
    (stage.home / "old").symlink_to("/bin/true")
    good.write_text(f"{stage.home / 'old'}\n0\n")
    return good


@pytest.mark.parametrize(("answer", "minutes", "code", "said"), [
    ("time.sleep(600)", "0.05", 0, "CONFIRM_MINUTES=0.05 are over: what was not measured again stays"),
    ("sys.exit(3)", "9", 3, "confirm failed with exit code 3"),
    ("os.kill(os.getpid(), 9)", "9", 3, "exit code 137: perfdash confirm was killed before its time"),
])  # fmt: skip
def test_the_night_is_told_however_confirm_ends(stage, answer, minutes, code, said):
    good = a_good_build_before(stage)
    perfdash = stage.venv / "bin" / "perfdash"
    perfdash.write_text(perfdash.read_text() + f"if name == 'confirm': {answer}\n")
    done = stage.night(
        "--confirm-minutes", minutes, POST="yes", REPO="o/r", ISSUE="7", GITHUB_TOKEN="ghp_hidden"
    )
    assert done.code == code, done.out
    assert said in done.out
    names = [call.split()[0] for call in stage.calls()]
    assert names.index("confirm") < names.index("report") < names.index("post")
    assert names.count("post") == 1
    assert good.read_text().splitlines()[0] == str(stage.home / "old"), "something is open"


@pytest.mark.parametrize(("first", "words", "option"), [
    ("/old.db", [], " --db /old.db"),
    ("/old.db", ["--db", "/new.db"], " --db /new.db"),
    ("postgresql://me:hidden@host/perf", [], ""),
])  # fmt: skip
def test_a_run_is_resumed_in_the_history_of_the_night(stage, first, words, option):
    mended = stage.fails("run-cpu")
    stage.night(PERFDASH_DB=first)
    mended.unlink()
    stage.calls()
    stage.night("--resume", "last", *words, PERFDASH_DB=first)
    (call,) = stage.calls("run")
    assert call == f"run --resume {stage.home}/runs/run1 --out {stage.home}/runs{option} --retry infra_error"


def test_a_resumed_night_passes_on_what_a_resumed_run_may_change(stage):
    mended = stage.fails("run-cuda")
    stage.night("--devices", "cpu,cuda", "--jobs", "auto", "--env", "A=b c")
    mended.unlink()
    stage.calls()
    changes = ["--timeout", "7200", "--retry=timeout,oom", "--retry", "crash"]
    resumed = stage.night("--resume", "last", *changes)
    assert resumed.code == 0, resumed.out
    calls = [call.partition(" --out ")[0::2] for call in stage.calls("run")]
    assert [call[0] for call in calls] == [
        f"run --resume {stage.home}/runs/run1", f"run --resume {stage.home}/runs/run2",
    ]  # fmt: skip
    tail = f"{stage.home}/runs --retry=timeout,oom --retry crash --env A=b c --timeout 7200"
    assert {call[1] for call in calls} == {tail}
    assert r"RUN_ARGUMENTS=\'--jobs\'\ \'auto\'" in resumed.text("settings"), "those of the night are kept"


def test_what_is_measured_again_keeps_the_options_of_the_night(stage):
    """Given twice, the later one counts; given again with the night, it is kept once."""
    stage.night("--jobs", "auto", RUN_ARGUMENTS="--backend onnxruntime")
    (call,) = stage.calls("run")
    assert call.endswith(" --backend onnxruntime --jobs auto")
    for words in (["--from", "measure"], ["--only", "measure"]):
        again = stage.night("--resume", "last", *words, "--timeout", "7200")
        assert again.code == 0, again.out
        (call,) = stage.calls("run")
        assert call.endswith(" --backend onnxruntime --jobs auto --timeout 7200")


def test_a_resumed_night_takes_the_parameters_of_stages_that_were_not_done(stage):
    assert stage.night(TORCH="abcdef0", TORCH_REPO=str(stage.home)).code == 3
    again = stage.night("--resume", "last", "--torch", "installed", "--models", "resnet*")
    assert again.code == 0, again.out
    (call,) = stage.calls("run")
    assert " --models resnet* " in call
    repeated = stage.night("--resume", "last", "--torch", "installed", "--models", "resnet*")
    assert repeated.code == 0, repeated.out
    anew = stage.night("--resume", "last", "--from", "measure", "--models", "mobile*", "--quick")
    assert anew.code == 0, anew.out
    (call,) = stage.calls("run")
    assert " --models mobile* --quick " in call


@pytest.mark.parametrize(("words", "why"), [
    (["--retry", "timeout"], "--retry needs --resume"),
    (["--resume", "last", "--jobs", "2"], "--jobs: a resumed night keeps it"),
    (["--resume", "last", "--timeout", "7200"], "have a result: with these options give --retry STATUS"),
    (["--resume", "last", "--from", "report", "--retry", "oom"], "and report measures nothing"),
    (["--resume", "last", "--from", "measure", "--retry", "oom"], "--retry needs --resume"),
    (["--resume", "last", "--models", "m*"], "--models: a resumed night keeps it; leave it out, or measure"),
    (["--resume", "last", "--suite=timm"], "--suites: a resumed night keeps it"),
    (["--resume", "last", "--from", "report", "--dtypes", "amp"], "--dtypes: a resumed night keeps it"),
    (["--only", "torch", "--quick"], "--quick: a resumed night keeps it"),
    (["--only", "torch", "--jobs", "2"], "and torch measures nothing"),
    (["--resume", "last", "--torch", "2.9"], "or measure all again by --from torch"),
    (["--resume", "last", "--post", "dry", "--repo", "o/r", "--issue", "7"],
     "--post: a resumed night keeps it; leave it out, or repeat the stage by --from post"),
    (["--resume", "last", "--bisect", "yes"], "or repeat the stage by --from bisect"),
    (["--resume", "last", "--baseline", "2026-11-20"], "or repeat the stage by --from report"),
    (["--from", "publish", "--post", "dry", "--repo", "o/r", "--issue", "7"], "by --from post"),
    (["--only", "report", "--mail-to", "a@b"], "by --from notify"),
    (["--from", "measure", "--under-test", "x"], "--under-test: a resumed night keeps it"),
])  # fmt: skip
def test_options_that_would_have_no_effect_are_refused(measured, words, why):
    (settings,) = measured.home.glob("**/settings")
    before = settings.read_text()
    done = measured.night(*words)
    assert (done.code, why in done.out) == (2, True), done.out
    assert not measured.calls()
    assert settings.read_text() == before


@pytest.mark.parametrize("words", [
    ["--from", "post"], ["--from", "report"], ["--only", "post"], ["--only", "post2"],
    [],  # detect was not done: what follows it is repeated anyway
])  # fmt: skip
def test_a_stage_that_is_repeated_takes_other_parameters(measured, tmp_path, words):
    stage = measured.copied(tmp_path / "night")
    if not words:
        (done,) = stage.home.glob("**/detect.done")
        done.unlink()
    done = stage.night("--resume", "last", *words, "--post", "dry", "--repo", "o/r", "--issue", "7")
    assert done.code == 0, done.out
    assert [call for call in stage.calls("post") if "--dry-run" in call]


def test_what_a_restart_forgot_is_set_again(stage):
    """A night that was killed left host.done; the machine is not quiet any more."""
    host = stage.home / "root/sys/kernel/mm/transparent_hugepage/enabled"
    host.parent.mkdir(parents=True)
    host.write_text("always")
    assert stage.night(HOST="apply").code == 0
    assert host.read_text() == "always"
    perfdash = stage.venv / "bin" / "perfdash"
    seen = f"if name == 'run': put({str(stage.home / 'seen')!r}, get({str(host)!r}, ''))"
    perfdash.write_text(perfdash.read_text() + seen + "\n")
    again = stage.night("--only", "measure")
    assert again.code == 0, again.out
    assert (stage.home / "seen").read_text() == "madvise"
    assert host.read_text() == "always"


def test_one_at_a_time(stage):
    (stage.home / "hang").touch()
    first = stage.start()
    wait_for(stage.home / "hangs")
    second = stage.night()
    assert second.code == 3
    assert "another nightly is running" in second.out
    (stage.home / "hang").unlink()
    assert stage.ended(first).code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_goes_on_where_it_was(stage, number):
    host = stage.home / "root/sys/kernel/mm/transparent_hugepage/enabled"
    host.parent.mkdir(parents=True)
    host.write_text("always")
    (stage.home / "hang").touch()
    running = stage.start(HOST="apply")
    wait_for(stage.home / "hangs")
    assert host.read_text() == "madvise"
    running.send_signal(number)
    done = stage.ended(running)
    assert done.code == 130
    assert host.read_text() == "always", "the host is restored"
    assert f"To continue: ci/nightly.sh --resume {done.folder}" in done.out
    assert done.stages()["measure"] == "130"
    (stage.home / "hang").unlink()
    stage.calls()
    again = stage.night("--resume", done.folder.name)
    assert again.code == 0, again.out
    assert stage.calls("run")[0].startswith(f"run --resume {stage.home}/runs/run1 ")
    assert host.read_text() == "always"


def test_killed_the_run_is_gone_on_with(stage):
    (stage.home / "hang").touch()
    running = stage.start()
    wait_for(stage.home / "hangs")
    running.kill()
    running.wait()
    running.stdout.close()  # what it had started still writes there
    # What it had started is still at work, and still holds the lock.
    assert "another nightly is running" in stage.night("--resume", "last").out
    (stage.home / "hang").unlink()
    for _ in range(1500):
        again = stage.night("--resume", "last")
        if again.code == 0:
            break
        time.sleep(0.2)
    assert again.code == 0, again.out
    assert again.stages()["measure"] == "0"


def test_shards_are_merged_once(stage):
    done = stage.night(SHARDS="2")
    assert done.code == 0, done.out
    (merge,) = stage.calls("merge-shards")
    assert merge.split()[1:3] == [f"{stage.home}/runs/run1", f"{stage.home}/runs/run2"]
    assert (done.folder / "run").read_text() == f"{stage.home}/runs/whole1\n"
    again = stage.night("--resume", "last", "--only", "merge")
    assert again.code == 0
    assert not stage.calls("merge-shards")
    assert (done.folder / "run").read_text() == f"{stage.home}/runs/whole1\n"
    # A shard that was gone on with has more to merge.
    (stage.home / "runs/run2/results.jsonl").write_text("{}\n")
    assert stage.night("--only", "merge").code == 0
    assert stage.calls("merge-shards")
    assert (done.folder / "run").read_text() == f"{stage.home}/runs/whole2\n"


def test_a_merged_run_that_could_not_be_recorded_is_merged_again(stage):
    """The database was down: the shards are merged and recorded by the night that is resumed."""
    mended = stage.fails("merge-shards")
    done = stage.night(SHARDS="2")
    assert done.code == 3, done.out
    assert (done.folder / "run").read_text() == f"{stage.home}/runs/whole1\n"
    stage.calls()
    assert stage.night("--resume", "last").code == 3
    assert stage.calls("merge-shards")
    mended.unlink()
    again = stage.night("--resume", "last")
    assert again.code == 0, again.out
    assert stage.calls("merge-shards")
    assert (again.folder / "run").read_text() == f"{stage.home}/runs/whole3\n"
    assert stage.night("--only", "merge").code == 0
    assert not stage.calls("merge-shards")


def test_a_merge_without_all_shards_stays_incomplete(stage):
    (stage.home / "incomplete").touch()
    assert stage.night(SHARDS="2").code == 3
    stage.calls()
    again = stage.night("--resume", "last")
    assert (again.code, again.stages()["merge"]) == (3, "3")
    assert not stage.calls("merge-shards")


def test_shards_of_two_plans_are_no_whole_night(stage):
    """Each measured other cases: some were missing, others twice, and the night was "ok"."""
    done = stage.night(SHARDS="2")
    path = stage.home / "runs" / "run2" / "run.json"
    run = json.loads(path.read_text())
    path.write_text(json.dumps({**run, "plan": {**run["plan"], "fingerprint": "of other costs"}}))
    again = stage.night("--resume", "last", "--from", "merge")
    assert (done.code, again.code, again.stages()["merge"]) == (0, 3, "3")
    assert "cpu-1: 1 of 2 shards of one plan: run1" in again.out
    assert "cpu-1: 1 of 2 shards of one plan: run2" in again.out


def test_a_shard_that_failed_is_resumed_and_not_what_it_was_merged_into(stage):
    """The merged run names the JUnit files of its shards, and is newer."""
    mended = stage.fails("run-2-2")
    (stage.home / "incomplete").touch()
    assert stage.night(SHARDS="2").code == 3
    mended.unlink()
    (stage.home / "incomplete").unlink()
    (stage.home / "runs/run2/results.jsonl").write_text("{}\n")
    stage.calls()
    done = stage.night("--resume", "last")
    assert done.code == 0, done.out
    calls = stage.calls()
    (resumed,) = [call for call in calls if call.startswith("run")]
    assert resumed.startswith(f"run --resume {stage.home}/runs/run2 ")
    assert (done.folder / "runs").read_text() == f"{stage.home}/runs/run1\n{stage.home}/runs/run2\n"
    assert (done.folder / "run").read_text() == f"{stage.home}/runs/whole2\n"
    assert sum(call.startswith("confirm") for call in calls) <= 1
    assert (done.folder / "run").read_text().count("\n") == 1


def test_only_shards_of_one_repetition_are_merged(stage):
    """The first shard of the first repetition left no folder; measured later, it is the last in `runs`."""
    taken = stage.home / "taken-cpu-1.1.xml"
    taken.touch()
    runs = f"{stage.home}/runs"
    done = stage.night(SHARDS="2", BASE_RUNS="3")
    assert done.code == 3
    assert (done.folder / "runs").read_text().split() == [f"{runs}/run{number}" for number in range(1, 6)]
    assert sorted(stage.calls("merge-shards")) == [
        f"merge-shards {runs}/run2 {runs}/run3 --out {runs}",
        f"merge-shards {runs}/run4 {runs}/run5 --out {runs}",
    ]
    (told,) = (done.folder / "run").read_text().split()
    assert json.loads(Path(told, "run.json").read_text())["merged_from"] == [f"{runs}/run4", f"{runs}/run5"]
    taken.unlink()
    assert stage.night("--resume", "last").code == 0
    assert stage.calls("merge-shards") == [f"merge-shards {runs}/run1 {runs}/run6 --out {runs}"]
    assert (done.folder / "run").read_text() == f"{told}\n"


@pytest.mark.parametrize("words", [["--from", "measure"], ["--only", "measure"], ["--from", "torch"]])
def test_what_is_measured_once_more_is_a_new_run(measured, tmp_path, words):
    """Those of before stay: they are of another build."""
    stage = measured.copied(tmp_path / "night")
    (first,) = stage.home.glob("runs/nightly/2*")
    (stage.home / "fail-run-cpu").touch()
    stage.calls()
    again = stage.night(*words)
    assert again.folder == first
    (call,) = stage.calls("run")
    assert "--resume" not in call
    assert (again.folder / "runs").read_text() == f"{stage.home}/runs/run2\n"
    # What failed of it is resumed, and not measured a third time.
    (stage.home / "fail-run-cpu").unlink()
    assert stage.night("--resume", "last").code == 0
    (call,) = stage.calls("run")
    assert call.startswith(f"run --resume {stage.home}/runs/run2 ")
    assert not (first / "measure.failed").exists(), "no later stage reports the earlier failure"


def test_one_stage_and_from_a_stage(stage):
    stage.night(SITE_DIR="site")
    stage.calls()
    assert stage.night("--only", "publish").code == 0
    assert [call.split()[0] for call in stage.calls()] == ["site"]
    assert stage.night("--resume", "last", "--from", "report2").code == 0
    assert {call.split()[0] for call in stage.calls()} == {"report", "site"}
