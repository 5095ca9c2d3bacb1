"""Which alerts of a history have an issue."""

from __future__ import annotations

from perfdash.detect.nightly_judging import judge_new
from perfdash.history.ingest import take_in
from perfdash.history.store import open_store
from perfdash.publish.tracked_regressions import tracked_regressions
from perfdash.report.night import Night
from tests.detect.simulated import farm, slower


def test_a_suspected_change_has_no_issue_until_it_is_confirmed(tmp_path):
    runs = farm(34, change=slower("model03", 30, 1.4))
    address = str(tmp_path / "history.db")
    issues = []
    with open_store(address) as store:
        take_in(store, runs[:30])
        judge_new(store, latest=1)
    for night_run in runs[30:]:
        with open_store(address) as store:
            take_in(store, [night_run])
            judge_new(store)
        issues.append(
            [
                (issue.state, issue.open)
                for issue in tracked_regressions(Night(night_run), address, None).issues
            ]
        )
    assert issues == [[("suspected", None)], [("new", None)], [("confirmed", True)], [("open", True)]]
