"""`perfdash plot` as a user runs it: from a folder, from the history; what it says where there is nothing."""

from dataclasses import replace

import pytest

from perfdash.history.ingest import take_in
from perfdash.history.store import open_store
from perfdash.records import Status
from perfdash.runner.run_journal import RunJournal
from tests.history.made import case, row, run
from tests.report.results import failed, good, info


@pytest.fixture
def history(tmp_path):
    """Three nights in runs/history.db."""
    (tmp_path / "runs").mkdir()
    nights = [
        run(f"2026-11-0{day}", [row("a", speedup=1.0 + day / 10), row("b", "crash", wall_s=1.0)])
        for day in (1, 2, 3)
    ]
    nights.append(run("2026-11-05", [row(speedup=1.1, of=case("x", batch_size=1))], host_class="other"))
    with open_store(str(tmp_path / "runs" / "history.db")) as store:
        take_in(store, nights)
    return tmp_path


def test_a_run_of_the_history(command, history):
    done = command("plot", "2026-11-02T01-00-00Z_farm")
    assert done.code == 0, done.err
    folder = history / "plots" / "2026-11-02T01-00-00Z_farm"
    names = sorted(path.name for path in folder.iterdir())
    assert names == [
        f"{kind}_timm_cpu_float32_t1_inference.{form}"
        for kind in ("speedup", "trend")
        for form in ("png", "svg")
    ]
    assert sorted(done.out.split()) == [f"plots/2026-11-02T01-00-00Z_farm/{name}" for name in names]
    assert "2 runs up to 2026-11-02T01-00-00Z_farm" in (folder / names[3]).read_text()
    assert "Not drawn: latency: no model was measured at several batch sizes" in done.err


def test_only_the_kinds_asked_for_into_a_folder_of_ones_own(command, history):
    other = history / "to"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    done = command("plot", "2026-11-03", "--kind", "speedup", "--to", str(other))
    assert done.code == 0, done.err
    assert (other / "notes.txt").read_text() == "mine"
    assert {path.suffix for path in other.iterdir()} == {".png", ".svg", ".txt"}
    before = {path: path.read_bytes() for path in other.iterdir()}
    assert command("plot", "2026-11-03", "--kind", "speedup", "--to", str(other)).code == 0
    assert {path: path.read_bytes() for path in other.iterdir()} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--kind", "speed"],
            "--kind: 'speed' is not one of speedup, latency, throughput, memory",
        ),
        (["--kind", "latency,throughput"], "nothing to draw: latency: no model was measured at several"),
        (["nonsense"], "nonsense"),
    ],
)
def test_wrong_usage_is_one_message(command, history, arguments, message):
    run_name = [] if arguments[0] == "nonsense" else ["2026-11-03"]
    done = command("plot", *run_name, *arguments)
    assert done.code == 2
    assert message in done.err
    assert "Traceback" not in done.err
    assert not (history / "plots").exists()


def test_a_run_without_results(command, history):
    with open_store(str(history / "runs" / "history.db")) as store:
        take_in(store, [replace(run("2026-11-09"), rows=())])
    done = command("plot", "2026-11-09")
    assert done.code == 2
    assert "nothing to draw: speedup: no case has finished" in done.err


def test_a_folder_that_cannot_be_written(command, history):
    (history / "file").write_text("")
    done = command("plot", "2026-11-03", "--to", str(history / "file" / "below"))
    assert done.code == 3
    assert "cannot be written" in done.err


def test_a_run_folder(command, tmp_path):
    journal = RunJournal.create(tmp_path / "runs")
    results = [good("fast", 1.4, "faster", batch_size=size) for size in (1, 8)]
    results.append(failed("crashed", Status.CRASH, "compile", "ended by SIGSEGV"))
    journal.write_info(replace(info(3), id=journal.folder.name))
    for result in results:
        journal.append(result)
    journal.close()
    done = command("plot")
    assert done.code == 0, done.err
    files = {path.name.partition("_")[0] for path in (tmp_path / "plots" / journal.folder.name).iterdir()}
    assert files == {"speedup", "latency", "throughput", "compile"}
    assert "Not drawn: memory: no peak memory was measured" in done.err
    assert "Not drawn: trend: there is no history" in done.err
    assert not (tmp_path / "runs" / "history.db").exists()
