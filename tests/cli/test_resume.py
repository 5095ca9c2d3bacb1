"""--resume, --retry, --shard and merge, as typed."""

import json
import shutil
import subprocess
from dataclasses import replace

import pytest

from perfdash.records import Status
from perfdash.runner.run_journal import RunJournal, read_all, read_results
from tests.conftest import HERE, Ran, perfdash

pytestmark = pytest.mark.slow

SUITE = """
name = "some"
loader = "python"
[[models]]
name = "itself"
target = "{models}:itself"
[[models]]
name = "wrong"
target = "{models}:wrong"
[[models]]
name = "fails"
target = "{models}:compiled_fails"
"""
RUN = ["run", "--suite", "some.toml", "--backend", "aot_eager", "--processes", "1"]


@pytest.fixture(scope="module")
def suite():
    return SUITE.format(models=HERE / "truth" / "models.py")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, suite):
    """A run of all three cases, in a folder that nobody changes."""
    home = tmp_path_factory.mktemp("whole")
    (home / "some.toml").write_text(suite)
    ran = perfdash(*RUN, cwd=home, quickly=True)
    assert ran.code == 0, ran.err
    return ran


@pytest.fixture
def half(whole, tmp_path) -> Ran:
    """A run of which only the first case was measured."""
    shutil.copytree(whole.runs.parent, tmp_path, dirs_exist_ok=True)
    ran = replace(whole, runs=tmp_path / "runs")
    # The copy is of the suite beside it, which the test may change.
    info = ran.folder / "run.json"
    info.write_text(info.read_text().replace(str(whole.runs.parent), str(tmp_path)))
    journal = ran.folder / "results.jsonl"
    journal.write_bytes(journal.read_bytes().splitlines(keepends=True)[0] + b'{"torn')
    return ran


def test_what_is_left_and_nothing_else(command, half):
    first = read_results(half.folder)
    journal = half.folder / "results.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'\n{"torn', b'\n{"damaged\n{"torn'))
    ran = command("run", "--resume", "last")
    assert ran.code == 0, ran.err
    assert "2 of 3 cases to measure" in ran.out
    assert "results.jsonl, line 2: " in ran.err
    assert (half.folder / "results.damaged.jsonl").read_text() == '{"damaged\n'
    results = read_results(ran.folder)
    assert [r.case.model for r in results] == ["itself", "wrong", "fails"]
    assert results[0].started == first[0].started
    assert results[0].eager_ms == first[0].eager_ms
    assert len(ran.info.sessions) == 2

    # Rows with a status again; the old ones are kept.
    ran = command("run", "--resume", str(ran.folder), "--retry", "fail_accuracy,crash", "--timeout", "50")
    assert "1 of 3 cases to measure" in ran.out
    assert [r.case.model for r in read_all(ran.folder)] == ["itself", "wrong", "fails", "wrong"]
    assert len(read_results(ran.folder)) == 3
    assert "3 of 3 cases" in ran.out

    # Nothing is left: the tables again.
    ran = command("run", "--resume", "last", "--fail-on", "accuracy")
    assert ran.code == 1
    assert "0 of 3 cases to measure" in ran.out
    assert "--fail-on accuracy: 1 of 3: some/wrong bs " in ran.err


def test_a_disturbed_case_and_a_refused_run(command, half):
    """The one case that was measured was disturbed: it is measured once more, and then no more."""
    journal, run_json = half.folder / "results.jsonl", half.folder / "run.json"
    lines = [json.loads(journal.read_bytes().splitlines()[0])]
    lines[0]["conditions"]["disturbed"] = "other programs used this core"
    journal.write_text(json.dumps(lines[0]) + "\n")
    ran = command("run", "--resume", "last")
    assert "3 of 3 cases to measure" in ran.out
    assert [r.case.model for r in read_all(half.folder)].count("itself") == 2

    # In a run of an earlier method it would not be measured again.
    lines = [json.loads(line) for line in journal.read_text().splitlines()] + lines
    for line in lines:
        line["method"]["compilation"] = 1
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    info = json.loads(run_json.read_text())
    info["noise"]["refused"] = "at the end of the run it is off"
    run_json.write_text(json.dumps(info))
    again = command("run", "--resume", "last")
    assert again.code == 3
    assert "0 of 3 cases to measure" in again.out
    assert "not put into the history: --strict: at the end of the run it is off" in again.err
    swept = command("history", "import", "runs", "--db", "new.db")
    assert "left out: --strict: at the end of the run it is off" in swept.err
    named = command("history", "import", str(half.folder), "--db", "new.db")
    assert named.code == 0
    assert "imported, although --strict: at the end of the run it is off" in named.err


def test_what_would_mix_numbers_is_refused(command, half, tmp_path, suite):
    def refused(code, *words, arguments=()):
        ran = command("run", "--resume", "last", *arguments)
        assert ran.code == code, ran.out
        for word in words:
            assert word in ran.err
        assert "Traceback" not in ran.err
        assert len(read_results(half.folder)) == 1

    refused(2, "--threads: 1 | 2", arguments=["--threads", "2"])
    refused(2, "--backend: aot-eager | inductor", arguments=["--backend", "inductor"])
    refused(2, "--retry: 'bogus' is not one of", arguments=["--retry", "bogus"])
    refused(
        2,
        "it measures other cases than this command (some: ",
        "Leave out --suite",
        arguments=["--suite", "timm"],
    )
    (tmp_path / "some.toml").write_text(suite.replace('name = "fails"', 'name = "other"'))
    refused(
        2,
        "its plan differs from this command",
        "some_fails",
        "planned then | not now",
        "not planned then | now",
    )
    (tmp_path / "some.toml").write_text(suite + "tolerance = 0.5\n")
    refused(2, "tolerance: 0.001 | 0.5")
    (tmp_path / "some.toml").write_text(suite)

    info = json.loads((half.folder / "run.json").read_text())
    worker = info["environment"]["worker"]
    for change, words in (
        ({"host_class": "Xeon x 100"}, "host_class: Xeon x 100 | "),
        (
            {"worker": {**worker, "torch_git_version": "abc"}},
            "torch_git_version: abc | ",
        ),
    ):
        changed = {**info, "environment": {**info["environment"], **change}}
        (half.folder / "run.json").write_text(json.dumps(changed))
        refused(3, "its environment differs from this one", words)
    (half.folder / "run.json").write_text(json.dumps(info))

    record = json.loads((half.folder / "results.jsonl").read_bytes().splitlines()[0])
    older = {**record, "method": {**record["method"], "latency": 0}}
    (half.folder / "results.jsonl").write_text(json.dumps(older) + "\n")
    refused(2, "perfdash now measures by another method (latency 0 -> ", "Start a new run")
    (half.folder / "results.jsonl").write_text(json.dumps(record) + "\n")

    journal = RunJournal.reopen(half.folder)
    refused(2, "is being measured by another perfdash")
    journal.close()


def test_shards_are_merged(command, tmp_path, suite):
    (tmp_path / "some.toml").write_text(suite)
    runs = []
    for number in (1, 2):
        ran = command(*RUN, "--shard", f"{number}/2")
        assert ran.code == 0, ran.err
        runs.append(ran.out.split("Saved in ")[1].strip())
    merged = command("merge-shards", runs[0], "--out", "merged", runs[1])
    assert merged.code == 0, merged.err
    assert "3 of 3 cases" in merged.out
    assert "missing" not in merged.err
    (folder,) = [path for path in (tmp_path / "merged").iterdir() if path.is_dir()]
    assert {r.case.model: r.status for r in read_results(folder)} == {
        "itself": Status.PASS,
        "wrong": Status.FAIL_ACCURACY,
        "fails": Status.FAIL_TO_RUN,
    }
    compared = command("compare", runs[0], merged.out.split("Saved in ")[1].strip())
    assert compared.code == 0, compared.err
    assert "cases in both" in compared.out

    # In the history it is one run, however often it is merged, and the shards are none.
    assert command("merge-shards", *runs, "--out", "merged").code == 0
    listed = command("history", "runs", "--out", "merged", "--json")
    assert [(run["results"], run["expected"]) for run in json.loads(listed.out)] == [(3, 3)]
    assert command("history", "runs").code == 2
    left_out = command("history", "import", "runs")
    assert left_out.err.count("a shard goes in when it is merged") == 2
    refused = command("merge-shards", runs[0], runs[0])
    assert (refused.code, "one shard only" in refused.err) == (2, True)


def test_two_runs_on_one_core_are_impossible(request, command, command_server, tmp_path, suite):
    from perfdash.runner.cores import Locks, choose_cores, core_names

    (tmp_path / "some.toml").write_text(suite)
    (core,) = choose_cores(1, None)
    held = Locks.take(core_names([core]))
    request.addfinalizer(held.close)  # also where this fails: the tests after it measure on this core
    ran = command(*RUN)
    assert ran.code == 3
    assert "is being measured on by process" in ran.err
    assert not list((tmp_path / "runs").iterdir()), "nothing was measured: no run"
    waited = command(*RUN, "--wait", "1s")
    assert waited.code == 3
    assert "; waiting for up to 1 s" in waited.err
    assert not list((tmp_path / "runs").iterdir())
    perfdash = command_server.environment(tmp_path / "venv") / "bin" / "perfdash"
    with subprocess.Popen(
        [perfdash, *RUN, "--wait", "5m"],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as waiting:  # fmt: skip
        lines = iter(waiting.stderr.readline, "")
        assert any("waiting for up to 5 min" in line for line in lines)
        held.close()
        assert waiting.wait() == 0, "".join(lines)
