"""Golden files of what is printed; PERFDASH_UPDATE_GOLDEN=1 writes them anew, to be read in the diff."""

from dataclasses import replace

import perfdash
from perfdash.history.ingest import take_in
from perfdash.history.queries import model_series, rows_of
from perfdash.history.run_selection import find_run
from perfdash.report.terminal_tables import details, one_line, phase_table, run_rows, series_table
from tests.history.made import row, run
from tests.report.golden_files import golden
from tests.report.results import a_night
from tests.stores import made_store


def check(name, text):
    golden(f"{name}.txt", text + "\n")


def test_phases():
    check("phases", phase_table(a_night()[:5]))


def test_details():
    check("details", "\n\n".join(details(result) for result in a_night()[:5:4]))


def test_lines_of_a_log():
    check("lines", "\n".join(one_line(result) for result in a_night()))


def test_stored_results_that_count_in_no_mean_are_marked(tmp_path):
    rows = {
        "disturbed": replace(row("disturbed"), verdict="disturbed"),
        "nothing captured": row("nothing captured", speedup=1.0, graphs=0.0, calls_captured=0.0),
        "recompile limit": replace(row("recompile limit"), details={"recompile_limit": "reached"}),
    }
    path = tmp_path / "history.db"
    with made_store(path) as store:
        take_in(store, [run("2026-11-01", [*rows.values(), row("fine")])])
        with store.read() as connection:
            line = find_run(connection, "last")
            table = run_rows(line, rows_of(connection, line.id, details=True))
            series = {name: model_series(connection, line, name, ["speedup"]) for name in (*rows, "fine")}
            ((_, (graphs,)),) = model_series(connection, line, "nothing captured", ["graphs"])
    assert [(point.value, point.remark) for point in graphs] == [(0.0, "nothing captured")]
    frames = {name: perfdash.History(str(path)).series(name) for name in series}
    for name in rows:
        ((case, points),) = series[name]
        assert f"pass ({name})" in table
        assert f"pass ({name})" in series_table(case, ["speedup"], points)
        assert [point.remark for point in points[0]] == [name]
        assert frames[name][["remark", "excluded"]].values.tolist() == [[name, None]]
        assert "method" in frames[name]
    assert "pass (" not in series_table(series["fine"][0][0], ["speedup"], series["fine"][0][1])


def test_stored_numbers_without_a_column_are_named(tmp_path):
    rows = [
        replace(row("a"), values={}, others={"latency_ms": 335.0}),
        replace(row("b"), others={f"size {k}": 1.0 for k in range(9)}),
    ]
    with made_store(tmp_path / "history.db") as store:
        take_in(store, [run("2026-11-01", rows), run("2026-11-02", rows[:1]), run("2026-11-03", [row("c")])])
        with store.read() as connection:
            lines = [find_run(connection, name) for name in ("id:1", "id:2", "id:3")]
            tables = [run_rows(line, rows_of(connection, line.id, details=True)) for line in lines]
    names = ", ".join(["latency_ms", *(f"size {k}" for k in range(7))])
    text = "numbers without a column, which --json prints:"
    assert f"\n2 results have {text} {names} and 2 more" in tables[0]
    assert tables[1].endswith(f"\n1 result has {text} latency_ms")
    assert text not in tables[2]
