import io
import re

import pytest
from rich.console import Console

from perfdash.records import Case, Result, Speedup, Status
from perfdash.report import progress

CASE = Case("timm", "resnet18")


class Clock:
    def __init__(self, monkeypatch):
        self.now_s = 1000.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now_s)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def result(case=CASE):
    speedup = Speedup(1.25, 1.2, 1.3, "faster", "processes")
    return Result(case, "t", 12.0, Status.PASS, speedup=speedup, capture={"graphs": 0})


def lines(view):
    return view.text().plain.splitlines()


def test_the_seconds_of_what_is_done_count_up_without_any_event(clock):
    view = progress.Terminal()
    assert lines(view)[-1] == "starting (0 s)"
    view.activity("A/A null: process 1 of 2")
    clock.now_s += 7
    assert lines(view)[-1] == "A/A null: process 1 of 2 (7 s)"
    view.case_started(1, 3, CASE, left_s=400)
    view.phase(CASE, "compile")
    clock.now_s += 35
    assert lines(view)[-2:] == [
        "0/3 done, about 6 min left",
        "  timm resnet18 float32 inductor: compile (35 s)",
    ]


def test_time_left_counts_down_and_is_not_shown_when_it_is_over(clock):
    view = progress.Terminal()
    view.case_started(1, 1, CASE, left_s=60)
    clock.now_s += 20
    assert "0/1 done, about 40 s left" in lines(view)
    clock.now_s += 50
    assert "0/1 done" in lines(view)


def test_a_finished_case_is_a_result_and_no_longer_under_way(clock):
    view = progress.Terminal()
    view.case_started(1, 2, CASE, left_s=60)
    view.case_done(1, 2, result(), left_s=30)
    assert any("resnet18: pass (nothing captured), 1.250x" in line for line in lines(view))
    assert lines(view)[-1] == "1/2 done, about 30 s left"
    view.activity("A/A null: process 1 of 2")
    assert lines(view)[-1] == "A/A null: process 1 of 2 (0 s)"


def test_markup_of_a_name_is_shown_as_it_is(clock):
    view = progress.Terminal()
    view.say("[bold]x[/bold] and [link=file:///etc/passwd]y[/link]")
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    console.print(view.text())
    assert "[bold]x[/bold] and [link=file:///etc/passwd]" in re.sub(
        r"\x1b\[[0-9;]*m", "", console.file.getvalue()
    )


def test_a_log_has_a_line_at_the_start_and_the_end_of_a_case(capsys):
    log = progress.Plain()
    log.activity("starting")
    log.case_started(1, 2, CASE, left_s=100)
    log.phase(CASE, "compile")
    log.case_done(1, 2, result(), left_s=100)
    log.case_done(2, 2, result(), left_s=0)
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "[1/2] timm resnet18 float32 inductor ..."
    assert out[1].startswith("[1/2] resnet18: pass")
    assert out[1].endswith("(about 2 min left)")
    assert "left" not in out[2]
