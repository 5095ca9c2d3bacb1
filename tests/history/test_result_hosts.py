"""The machine of each result of a run that several machines measured."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from perfdash.history.export import export
from perfdash.history.ingest import take_in
from perfdash.history.maintenance import merge
from perfdash.history.queries import cases_by_id, list_runs, panel
from perfdash.history.store import open_store
from tests.history.made import row, run
from tests.stores import as_revision_0010, made_store


def on(model, host):
    return replace(row(model), details={"conditions": {"host": host}} if host else {})


def night(day, host, **hosts):
    return run(day, [on(model, name) for model, name in hosts.items()], host=host)


NIGHTS = [
    night("2026-11-01", "n1", a="n1", b="n1"),
    night("2026-11-02", "n1+n2", a="n1", b="n2", skipped=None),
    night("2026-11-03", "n1+n2", a="n2", b="n1"),
]
MACHINES = {
    "a": ["n1", "n1", "n2"],
    "b": ["n1", "n2", "n1"],
    "skipped": ["n1", "n1+n2", "n1+n2"],  # of what was not measured that of the run
}


def machines(store):
    with store.read() as connection:
        nights = panel(connection, list_runs(connection), ["eager_ms"])
        cases = cases_by_id(connection, nights.case_ids)
    return {
        cases[number].model: hosts
        for number, hosts in zip(nights.case_ids, nights.machines.tolist(), strict=True)
    }


def test_a_panel_has_the_machine_of_each_result(store):
    take_in(store, NIGHTS[:1])
    with store.read() as connection:
        assert panel(connection, list_runs(connection), []).hosts is None
    take_in(store, NIGHTS)
    assert machines(store) == MACHINES


def test_a_merged_history_and_an_export_have_them(store, tmp_path):
    with made_store(tmp_path / "other.db") as other:
        take_in(other, NIGHTS)
        merge(store, other)
    assert machines(store) == MACHINES
    with store.read() as connection:
        export(connection, list_runs(connection), tmp_path / "results.csv", "csv")
    table = pd.read_csv(tmp_path / "results.csv")
    assert table.host[table.model == "b"].tolist() == MACHINES["b"]


def test_a_store_of_before_gets_the_machines_that_the_results_name(address):
    before = [
        night("2026-11-01", "login1", a="n1", b="n1"),
        night("2026-11-02", "login1", a="n1", b="n2", skipped=None),
        night("2026-11-03", "n2+n1", a="n2", b="n1"),
        run("2026-11-04", [row("a")], host="unknown"),
    ]
    with open_store(address) as opened:
        take_in(opened, before)
        as_revision_0010(opened)
    with open_store(address) as migrated:
        with migrated.read() as connection:
            assert [line.host for line in list_runs(connection)] == ["n1", "n1+n2", "n1+n2", "unknown"]
        assert {model: hosts[:3] for model, hosts in machines(migrated).items()} == MACHINES
