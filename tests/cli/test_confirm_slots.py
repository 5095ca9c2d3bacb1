"""On which slots perfdash confirm measures the cases of a run; nothing is measured here."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from perfdash.detect import confirmation
from perfdash.detect.findings import Finding
from perfdash.records import Case
from perfdash.runner import alternating_builds, compatibility, host, remeasurement
from perfdash.runner.plan import cut
from tests.cli.run_folders import RUN, write_run
from tests.report.results import good
from tests.runner.planned import case

SLOWER = Finding("metric", 1, "backend_ms", 1, 0, 1, change=0.1)
BOUND = '{"bind_memory":true}'


@pytest.fixture
def suspected(called, tmp_path, monkeypatch):
    """The folder of a run of which a case on its own threads and one bound to a socket are suspected."""
    own, socket = (Case("timm", "m", threads=threads, settings=s) for threads, s in ((1, ""), (2, BOUND)))
    folder = write_run(
        tmp_path / "runs" / RUN,
        [good("m", 1.2, "faster", threads=each.threads, settings=each.settings) for each in (own, socket)],
    )
    plan = cut([replace(case("m"), case=each) for each in (own, socket)], [1.0, 1.0], None)
    (folder / "plan.json").write_text(json.dumps(plan.to_json()))
    assert called("history", "import", str(folder)).code == 0
    monkeypatch.setattr(confirmation, "candidates", lambda findings: {1: [SLOWER], 2: [SLOWER]})
    monkeypatch.setattr(compatibility, "check_machine", lambda *_: None)
    return folder


def test_cases_of_configuration_socket_are_measured_again_with_bound_memory(called, suspected, monkeypatch):
    handed = []

    def remeasure(*arguments):
        _, _, _, settings, _, planned, findings, *_ = arguments
        handed.append((settings.threads, settings.bind_memory, [each.case.settings for each in planned]))
        assert set(findings) == {each.case for each in planned}
        return 0

    monkeypatch.setattr(remeasurement, "remeasure", remeasure)
    done = called("confirm", str(suspected), "--good-python", "python")
    assert done.code == 0, done.err
    assert sorted(handed) == [(1, False, [""]), (2, True, [BOUND])]


@pytest.mark.parametrize(
    ("used", "is_refused", "shares"),
    [(0, False, [5, 10]), (2, False, [5, 8]), (7, False, [5, 3]), (12, False, [5, 0]), (1, True, [5, 10])],
)
def test_slots_have_the_minutes_that_those_before_them_left(
    called, suspected, monkeypatch, used, is_refused, shares
):
    """used: minutes that each takes; the pair that began last may end late."""
    clock, handed = [0.0], []
    monkeypatch.setattr(alternating_builds, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def remeasure(*arguments):
        budget = arguments[8]
        handed.append(budget.minutes)
        clock[0] += 3600  # it waits for its cores
        if is_refused and len(handed) == 1:
            raise remeasurement.NotTheGoodBuild("no night before the changes measured it")
        budget.begin()
        clock[0] += 60 * used
        return 0

    monkeypatch.setattr(remeasurement, "remeasure", remeasure)
    done = called("confirm", str(suspected), "--good-python", "python", "--minutes", "10")
    assert done.code == 0, done.err
    assert handed == pytest.approx(shares)


@pytest.mark.parametrize(
    ("refused", "code"), [({False}, 1), ({True}, 1), ({False, True}, 2)], ids=["own", "socket", "both"]
)
def test_slots_whose_changes_the_good_build_cannot_decide_leave_the_others(
    called, suspected, monkeypatch, refused, code
):
    """refused: by whether the slots are bound. The regression of the other slots is confirmed."""

    def remeasure(*arguments):
        settings, planned, decided = arguments[3], arguments[5], arguments[9]
        if settings.bind_memory in refused:
            raise remeasurement.NotTheGoodBuild("no night before the changes measured it")
        decided(remeasurement.Decision(planned[0].case, SLOWER, confirmation.STANDS, None, 5))
        return 1

    monkeypatch.setattr(remeasurement, "remeasure", remeasure)
    words = ("--good-python", "python", "--fail-on", "regression", "--json")
    done = called("confirm", str(suspected), *words)
    assert done.code == code
    assert "no night before the changes measured it" in done.err
    if code == 1:
        assert "1 case is left out: " in done.err
        (decision,) = json.loads(done.out)["decisions"]
        assert (decision["decision"], decision["case"]["settings"]) == (
            "confirmed",
            BOUND if False in refused else "",
        )


@pytest.mark.parametrize(("here", "code"), [({}, 0), ({"TORCHINDUCTOR_FREEZING": "1"}, 2)])
def test_cases_are_measured_again_with_the_variables_of_the_runs_shell(
    called, suspected, monkeypatch, here, code
):
    """A regression that shows only with a variable of the crontab was dismissed in a plain shell."""
    info = json.loads((suspected / "run.json").read_text())
    info["environment"]["variables"] = {"ONEDNN_MAX_CPU_ISA": "AVX2", "HF_HOME": "/gone"}
    (suspected / "run.json").write_text(json.dumps(info))
    monkeypatch.setattr(host, "relevant_variables", lambda _: here)
    handed = []

    def remeasure(*arguments):
        handed.extend(each.env for each in arguments[5])
        return 0

    monkeypatch.setattr(remeasurement, "remeasure", remeasure)
    done = called("confirm", str(suspected), "--good-python", "python")
    assert done.code == code, done.err
    if code:
        assert f"TORCHINDUCTOR_FREEZING is set in this shell, and was not set when {RUN} was" in done.err
    else:
        assert done.out.count(f"with variables of the shell of {RUN}: ONEDNN_MAX_CPU_ISA=AVX2") == 1
    assert handed == ([] if code else [{"ONEDNN_MAX_CPU_ISA": "AVX2"}] * 2)


def test_a_run_that_was_renamed_in_the_history_is_found_by_its_folder(called, tmp_path):
    folder = write_run(tmp_path / "runs" / RUN, [good("m", 1.2, "faster")])
    (folder / "plan.json").write_text(json.dumps(cut([case("m")], [1.0], None).to_json()))
    assert called("history", "import", str(folder)).code == 0
    assert called("history", "rename", RUN, "before-upgrade").code == 0
    done = called("confirm", str(folder), "--good-python", "python")
    assert done.code == 0, done.err
    assert "Nothing to measure again" in done.out
