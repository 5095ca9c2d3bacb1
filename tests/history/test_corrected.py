"""A foreign file that was corrected replaces what was imported of it before."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from perfdash.errors import UsageError
from perfdash.history import schema
from perfdash.history.importers import ImportOptions, read
from perfdash.history.ingest import KNOWN, OLDER, REPLACED, TAKEN_IN, take_in
from perfdash.history.maintenance import merge
from perfdash.history.queries import list_runs, read_run, rows_of
from perfdash.history.results import digest
from perfdash.report.terminal_tables import run_rows, run_table
from tests.stores import made_store

FILES = Path(__file__).parents[1] / "fixtures" / "imports"
NAME = "inductor_timm_models_float32_inference_cpu_performance.csv"
HEAD = "dev,name,batch_size,speedup,abs_latency,compilation_latency,compression_ratio\n"
ONE, TWO = "cpu,lcnet_050,64,1.25,8.0,12.8,0.96\n", "cpu,dpn107,64,1.5,80.0,32.8,0.9\n"
TOLD = ImportOptions(started="2024-02-03", host="box", threads=1)


@pytest.fixture
def store(tmp_path):
    with made_store(tmp_path / "history.db") as opened:
        yield opened


@pytest.fixture
def written(tmp_path):
    """written(lines, folder) is the run of a file with these lines."""

    def write(lines, folder="first", options=TOLD, head=HEAD):
        path = tmp_path / folder / NAME
        path.parent.mkdir(exist_ok=True)
        path.write_text(head + lines)
        return read([path], options)

    return write


@pytest.mark.parametrize(
    "corrected",
    [
        ONE.replace("1.25", "1.35") + TWO,
        ONE.replace("0.96", "0.86") + TWO,  # memory, which no digest of the past held
        ONE,  # a line fewer
    ],
)
def test_a_corrected_file_replaces_it(store, written, corrected):
    assert take_in(store, written(ONE + TWO)) == [TAKEN_IN]
    assert take_in(store, written(ONE + TWO)) == [KNOWN]
    assert take_in(store, written(corrected, "mended")) == [REPLACED]
    with store.read() as connection:
        (line,) = list_runs(connection)
        values = {row.case.model: row.values for row in rows_of(connection, line.id)}
    (wanted,) = written(corrected, "mended")
    assert values == {row.case.model: row.values for row in wanted.rows}


MARKED = HEAD.replace("\n", ",disturbed\n")
DISTURBED, CLEAN = MARKED + ONE.replace("\n", ",other programs\n"), MARKED + ONE.replace("\n", ",\n")


def verdicts(store):
    with store.read() as connection:
        return [row.verdict for line in list_runs(connection) for row in rows_of(connection, line.id)]


@pytest.mark.parametrize(("first", "second"), [(DISTURBED, CLEAN), (CLEAN, DISTURBED)])
def test_a_mark_that_is_corrected_replaces_it(store, written, first, second):
    runs = [written(text, folder, head="") for text, folder in ((first, "first"), (second, "mended"))]
    assert take_in(store, runs[0]) == [TAKEN_IN]
    assert take_in(store, runs[0]) == [KNOWN]
    assert take_in(store, runs[1]) == [REPLACED]
    assert verdicts(store) == [runs[1][0].rows[0].verdict]
    with pytest.raises(UsageError, match="give each its own --started"):
        take_in(store, runs[0] + runs[1])


def test_a_limit_of_recompiles_that_is_corrected_replaces_it(store, written):
    for text, outcome in (("limit reached", TAKEN_IN), ("", REPLACED), ("limit reached", REPLACED)):
        lines = MARKED.replace("disturbed", "recompile_limit") + ONE.replace("\n", f",{text}\n")
        assert [take_in(store, written(lines, head=""))[0] for _ in range(2)] == [outcome, KNOWN]
        with store.read() as connection:
            (row,) = read_run(connection, *list_runs(connection)).rows
        assert bool(row.details.get("recompile_limit")) == bool(text)


def test_a_merge_keeps_the_corrected_mark(store, other, written):
    take_in(store, written(DISTURBED, head=""))
    on_day(store, 1)
    take_in(other, written(CLEAN, "mended", head=""))
    on_day(other, 2)
    assert merge(other, store)[OLDER] == 1
    assert merge(store, other)[REPLACED] == 1
    assert verdicts(store) == verdicts(other) == [None]


def test_an_environment_that_is_corrected_replaces_it(store, other, tmp_path):
    path = tmp_path / "metrics-20230420004336.json"
    document = json.loads((FILES / path.name).read_text())
    path.write_text(json.dumps(document))
    assert take_in(store, read([path], replace(TOLD, started=None))) == [TAKEN_IN]
    document["environ"]["pytorch_version"] = "9.9.9"
    path.write_text(json.dumps(document))
    runs = read([path], replace(TOLD, started=None))
    assert [take_in(store, runs), take_in(store, runs)] == [[REPLACED], [KNOWN]]
    with store.read() as connection:
        assert [line.torch for line in list_runs(connection)] == ["9.9.9"]
    assert merge(other, store)[TAKEN_IN] == 1
    assert merge(other, store)[KNOWN] == 1
    assert take_in(other, runs) == [KNOWN]


def test_a_failure_that_got_its_size_from_another_night_is_known(store, written):
    """Its verdict, which is none, is found although the file says batch size 0."""
    failed = written(DISTURBED + "cpu,dpn107,0,0.0,0.0,0.0,0.0,\n", head="")
    take_in(store, failed)
    take_in(store, written(TWO, options=replace(TOLD, started="2024-02-04")))
    assert take_in(store, failed) == [KNOWN]


def test_other_threads_or_another_day_are_other_runs(store, written):
    take_in(store, written(ONE))
    take_in(store, written(ONE, options=replace(TOLD, threads=4)))
    take_in(store, written(ONE, options=replace(TOLD, started="2024-02-04")))
    with store.read() as connection:
        assert len(list_runs(connection)) == 3


def test_two_files_of_one_import_do_not_replace_each_other(store, written):
    both = [*written(ONE), *written(ONE.replace("1.25", "1.3"), "second")]
    with pytest.raises(UsageError, match="give each its own --started"):
        take_in(store, both)


def test_what_an_earlier_perfdash_took_in_is_known(store, written):
    (run,) = written(ONE)
    of_01(store, run)
    assert take_in(store, [run]) == [KNOWN]
    with store.read() as connection:
        (line,) = list_runs(connection)
    assert line.judged, "nothing of it has changed: it is not judged again"
    assert line.name == run.run.name
    assert take_in(store, [run]) == [KNOWN]
    assert take_in(store, written(ONE.replace("1.25", "1.35"))) == [REPLACED]
    with store.read() as connection:
        (line,) = list_runs(connection)
    assert not line.judged


def test_what_an_earlier_perfdash_took_in_may_be_corrected_where_it_did_not_look(store, written):
    of_01(store, *written(ONE))
    assert take_in(store, written(ONE.replace("0.96", "0.86"))) == [REPLACED]


def of_01(store, run):
    """Takes a run in as perfdash 0.1 did, and as judged since."""
    take_in(store, [run])
    content = digest([run.run.state, run.run.ended, run._numbers()])
    values = {"key": run.earlier_key, "content": content, "name": run.run.imported["name"], "judged": "2026"}
    with store.write() as connection:
        connection.execute(sa.update(schema.runs).values(**values))


@pytest.fixture
def other(tmp_path):
    """Another history."""
    with made_store(tmp_path / "other.db") as opened:
        yield opened


def on_day(store, day):
    """Says that all was taken in on a day."""
    with store.write() as connection:
        connection.execute(sa.update(schema.runs).values(taken_in=f"2026-01-0{day}T00:00:00Z"))


def speedups(store):
    with store.read() as connection:
        return [
            row.values["speedup"] for line in list_runs(connection) for row in rows_of(connection, line.id)
        ]


@pytest.mark.parametrize("earlier", [False, True])
def test_a_merge_keeps_the_corrected_file_whichever_way(store, other, written, earlier):
    corrected = written(ONE.replace("1.25", "1.35"))
    take_in(store, corrected)
    on_day(store, 2)
    of_01(other, *written(ONE)) if earlier else take_in(other, written(ONE))
    on_day(other, 1)
    assert merge(store, other)[OLDER] == 1
    assert speedups(store) == [1.35]
    if not earlier:
        assert merge(other, store)[REPLACED] == 1
        assert speedups(other) == [1.35]
        assert merge(store, other)[KNOWN] == 1


def test_a_merged_night_counts_as_old_as_it_was(store, other, written, tmp_path):
    take_in(other, written(ONE))
    on_day(other, 1)
    assert merge(store, other)[TAKEN_IN] == 1
    with made_store(tmp_path / "third.db") as third:
        take_in(third, written(ONE.replace("1.25", "1.35")))
        on_day(third, 2)
        assert merge(store, third)[REPLACED] == 1
    assert speedups(store) == [1.35]


def test_a_merge_knows_what_an_earlier_perfdash_took_in(store, other, written):
    take_in(store, written(ONE + TWO))
    of_01(other, *written(ONE + TWO))
    assert merge(store, other)[KNOWN] == 1
    assert len(speedups(store)) == 2


@pytest.mark.parametrize("corrected", [ONE.replace("1.25", "1.35"), ONE + TWO])
def test_a_corrected_file_replaces_what_an_earlier_perfdash_took_in(store, written, corrected):
    of_01(store, *written(ONE))
    take_in(store, written(ONE, options=replace(TOLD, host="desk")))
    take_in(store, written(ONE, options=replace(TOLD, threads=4)))
    assert take_in(store, written(corrected)) == [REPLACED]
    with store.read() as connection:
        assert len(list_runs(connection)) == 3


def test_which_of_two_nights_of_an_earlier_perfdash_was_corrected_is_not_guessed(store, written):
    of_01(store, *written(ONE))
    first = written(ONE.replace("1.25", "1.3"))[0]
    take_in(store, [replace(first, copied=(first.earlier_key, "0.1"), run=called(first))])
    assert take_in(store, written(ONE.replace("1.25", "1.35"))) == [TAKEN_IN]


def called(run):
    """The run as perfdash 0.1 named it."""
    return replace(run.run, name=run.run.imported["name"])


def test_a_night_is_named_and_shown_with_its_date(store, written):
    take_in(store, written(ONE))
    with store.read() as connection:
        (line,) = list_runs(connection)
        rows = rows_of(connection, line.id)
    assert line.name == "2024-02-03T00-00-00Z_inductor_timm_models_float32_inference_cpu"
    for text in (run_table([line]), run_rows(line, rows)):
        assert "2024-02-03T00:00:00Z" in text


def test_a_latency_of_zero_is_refused(written):
    with pytest.raises(UsageError, match=r"performance.csv, line 2: abs_latency is 0 of a model that ran"):
        written(ONE.replace("8.0", "0.0"))
    (run,) = written("cpu,lcnet_050,64,0.0,0.0,0.0,0.0\n")
    assert run.rows[0].status == "fail_to_run", "zeros of a model that did not run are padding"
