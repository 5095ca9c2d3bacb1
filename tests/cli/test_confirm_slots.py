"""On which slots perfdash confirm measures the cases of a run; nothing is measured here."""

from __future__ import annotations

import json
from dataclasses import replace

from perfdash.detect import confirmation
from perfdash.detect.findings import Finding
from perfdash.records import Case
from perfdash.runner import compatibility, remeasurement
from perfdash.runner.plan import cut
from tests.cli.run_folders import RUN, write_run
from tests.report.results import good
from tests.runner.planned import case

SLOWER = Finding("metric", 1, "backend_ms", 1, 0, 1, change=0.1)
BOUND = '{"bind_memory":true}'


def test_cases_of_configuration_socket_are_measured_again_with_bound_memory(called, tmp_path, monkeypatch):
    own, socket = (Case("timm", "m", threads=threads, settings=s) for threads, s in ((1, ""), (2, BOUND)))
    folder = write_run(
        tmp_path / "runs" / RUN,
        [good("m", 1.2, "faster", threads=each.threads, settings=each.settings) for each in (own, socket)],
    )
    plan = cut([replace(case("m"), case=each) for each in (own, socket)], [1.0, 1.0], None)
    (folder / "plan.json").write_text(json.dumps(plan.to_json()))
    assert called("history", "import", str(folder)).code == 0
    handed = []

    def remeasure(*arguments):
        _, _, _, settings, _, planned, findings, *_ = arguments
        handed.append((settings.threads, settings.bind_memory, [each.case for each in planned]))
        assert set(findings) == {each.case for each in planned}
        return 0

    monkeypatch.setattr(confirmation, "candidates", lambda findings: {1: [SLOWER], 2: [SLOWER]})
    monkeypatch.setattr(compatibility, "check_machine", lambda *_: None)
    monkeypatch.setattr(remeasurement, "remeasure", remeasure)
    done = called("confirm", str(folder), "--good-python", "python")
    assert done.code == 0, done.err
    assert sorted(handed, key=str) == [(1, False, [own]), (2, True, [socket])]


def test_a_run_that_was_renamed_in_the_history_is_found_by_its_folder(called, tmp_path):
    folder = write_run(tmp_path / "runs" / RUN, [good("m", 1.2, "faster")])
    (folder / "plan.json").write_text(json.dumps(cut([case("m")], [1.0], None).to_json()))
    assert called("history", "import", str(folder)).code == 0
    assert called("history", "rename", RUN, "before-upgrade").code == 0
    done = called("confirm", str(folder), "--good-python", "python")
    assert done.code == 0, done.err
    assert "Nothing to measure again" in done.out
