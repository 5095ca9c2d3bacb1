"""perfdash compare as typed, on runs that were never measured."""

from __future__ import annotations

import json

import pytest

from perfdash.history.ingest import take_in
from perfdash.history.store import open_store
from tests.history.made import case, row, run


@pytest.fixture
def unlike(tmp_path):
    """Two nights without a case in common: the batch size differs."""
    nights = [run(f"2026-11-0{n}", [row(of=case(batch_size=n))]) for n in (1, 8)]
    with open_store(str(tmp_path / "runs" / "history.db")) as store:
        take_in(store, nights)


def test_a_gate_over_nothing_is_wrong_use(called, unlike):
    result = called("compare", "2026-11-01", "2026-11-08")
    assert (result.code, "Nothing to compare" in result.out) == (0, True)
    gated = called("compare", "2026-11-01", "2026-11-08", "--fail-on", "regression")
    assert gated.code == 2
    assert "--fail-on regression: nothing to compare: no case is in both (batch_size 1 | 8)" in gated.err


@pytest.mark.parametrize("form", ["json", "csv"])
def test_output_for_programs_says_it_too(called, unlike, form):
    result = called("compare", "2026-11-01", "2026-11-08", "--format", form)
    assert "nothing to compare" in result.err
    if form == "json":
        assert "batch_size" in json.loads(result.out)["nothing_to_compare"]


def test_the_baseline_is_of_the_hosts_of_the_run(called, tmp_path):
    """Two hosts measured on each date: the run says of which it is."""
    hosts = ("farm", "desk")
    nights = [
        run(day, [row()], host=host, host_class=f"{host} x 4", name=f"{day}_{host}")
        for day in ("2026-11-01", "2026-11-02")
        for host in hosts
    ]
    with open_store(str(tmp_path / "runs" / "history.db")) as store:
        take_in(store, nights)
    words = ["--repo", "a/b", "--issue", "1", "--dry-run", "--baseline", "2026-11-01"]
    result = called("post", "2026-11-02_desk", *words)
    assert result.code == 0, result.err
    assert "Compared with 2026-11-01_desk" in result.out.replace("\\", "")


def test_a_report_with_a_baseline_and_a_gate(called, unlike):
    result = called("report", "2026-11-08", "--baseline", "2026-11-01", "--fail-on", "regression")
    assert result.code == 2
    assert "nothing to compare" in result.err


def test_a_report_with_a_baseline_whose_numbers_cannot_be_tested_and_a_gate(called, tmp_path):
    """The speedup halved, but has no interval: the gate refuses what that of `compare` refuses."""
    nights = [
        run(f"2026-11-0{day}", [row("a", speedup=speedup), *more])
        for day, speedup, more in ((1, 1.5, []), (2, 0.75, [row("new")]))
    ]
    with open_store(str(tmp_path / "runs" / "history.db")) as store:
        take_in(store, nights)
    words = ["report", "2026-11-02", "--baseline", "2026-11-01", "--format", "markdown"]
    assert "not measured before" in called(*words).out
    result = called(*words, "--fail-on", "regression")
    assert result.code == 2
    assert "--fail-on regression: nothing to compare: numbers of 1 of 1 cases" in result.err
