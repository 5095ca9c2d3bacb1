"""The report of a bisection; PERFDASH_UPDATE_GOLDEN=1 writes the golden files anew."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from perfdash.bisection.engine import DeadEnd, LimitReached
from perfdash.bisection.journal import read
from perfdash.bisection.replay import Bisection
from perfdash.bisection.result import result_of
from perfdash.bisection.sources import Revision
from perfdash.report.bisection_report import headline, main_text, markdown, page
from tests.bisection.scripted import Script, begin, bisected, go_on, revision
from tests.report.nights import HOSTILE

GOLDEN = Path(__file__).parent / "golden"


def found_case():
    script = Script.step(100, at=63, by=1.08, metric="backend")
    linked = dataclasses.replace(script.revisions[63], link="https://github.com/o/r/commit/3f")
    script.revisions[63] = linked
    return script


def a_set():
    return Script.step(50, at=30, unbuildable={str(n): f"gcc: error {n}" for n in (29, 30, 31)})


def not_reproduced():
    return Script.step(64, at=999)


def statuses():
    says = {str(n): "crash" if n >= 9 else "pass" for n in range(32)}
    return Script.step(32, at=0, metric="status", says=says)


def inside_a_merge():
    script = Script.step(20, at=12)
    script.revisions[12] = revision(12, parents=2)
    script.sides["12"] = [script.revisions[5], *(revision(n, prefix="b") for n in range(6))]
    script.levels.update({f"b{n}": 1.1 if n >= 3 else 1.0 for n in range(6)})
    return script


def printed():
    return Script.step(40, at=11, metric="stdout")


def hostile():
    script = Script.step(30, at=10)
    nasty = [
        Revision(
            f"{HOSTILE}{n}", f"{HOSTILE[:5]}{n}", HOSTILE, HOSTILE, "2026-11-01", (), "javascript:alert(1)"
        )
        for n in range(30)
    ]
    script.unbuildable = {nasty[n].label: HOSTILE for n in (9, 14, 15)}
    script.levels = {item.label: 1.1 if n >= 10 else 1.0 for n, item in enumerate(nasty)}
    script.revisions = nasty
    return script


CASES = {
    item.__name__: item
    for item in (found_case, a_set, not_reproduced, statuses, inside_a_merge, printed, hostile)
}


def page_of(script, folder, **more):
    """The account, as if all had been done at one time."""
    bisected(script, folder, notes=["3 files have changes that are not committed"], **more)
    return result_of(Bisection(at_once(read(folder))))


def at_once(recorded):
    for event in recorded:
        event["at"] = "2026-11-21T03:04:05Z"
        if "reading" in event:
            event["seconds"] = 30.0
    return recorded


@pytest.mark.parametrize("name", CASES)
def test_golden(name, tmp_path):
    text = markdown(page_of(CASES[name](), tmp_path))
    path = GOLDEN / f"bisection_{name}.md"
    if os.environ.get("PERFDASH_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", CASES)
def test_the_page_is_whole_and_nothing_in_it_runs(name, tmp_path):
    markup = page_of(CASES[name](), tmp_path)
    text = page(markup)
    assert "<script" not in text
    assert 'href="javascript' not in text
    for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ET.fromstring(svg)
    assert text.count("<svg") == len(markup.ranges)
    sided = [stage for stage in markup.ranges if any(tested.side for tested in stage.tested)]
    assert text.count("● good, ■ bad, ◆ cannot tell; ") == len(sided)
    json.dumps(markup.to_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("hint", "written"),
    [
        ("clone https://example.org/k_c and give --pin-repo k_c=PATH with --resume",
         "clone `https://example.org/k_c` and give --pin-repo k_c=PATH with --resume"),
        ("clone git@example.org:o/kc.git, then", "clone `git@example.org:o/kc.git`, then"),
        ("see http://h/x?a=b#12. @team #12", "see `http://h/x?a=b#12`. @<!-- -->team #<!-- -->12"),
        ("no address: x:// <b> _a_", r"no address: x:<!-- -->// &lt;b&gt; \_a\_"),
    ],
)  # fmt: skip
def test_addresses_in_a_hint_can_be_copied(tmp_path, hint, written):
    script = Script.step(20, at=12)

    def descend(*_):
        raise DeadEnd(hint)

    script.descend = descend
    text = markdown(page_of(script, tmp_path, pins=True))
    assert f"\n- {written}\n" in text


def test_each_unexplained_change_is_shown_with_addresses_that_can_be_copied(tmp_path):
    """A long text does not hide the next one."""
    hint = f"{'a pin ' * 60}at https://example.org/k_c {'a pin ' * 60}"
    result = page_of(Script.step(20, at=12), tmp_path)
    result = dataclasses.replace(result, unexplained=(hint, "between 3 and 5: undecided"))
    for text in (markdown(result), main_text(result)):  # that of --all-alerts has only the second
        (line,) = (line for line in text.splitlines() if line.startswith("Unexplained: "))
        assert " at `https://example.org/k_c` a pin" in line
        assert line.endswith("…; between 3 and 5: undecided.")


@pytest.mark.parametrize(
    ("metric", "eager", "factor", "end"),
    [
        ("speedup", 2.7, 0.9, ": it became faster, and compiled has no measurable change"),
        ("speedup", 3.3, 1.1, ": it became slower, and compiled has no measurable change"),
        ("speedup", 3.9, 0.93, ": it moved as well, so the change is in what both share"),
        ("speedup", 3.0, 0.9, ": no measurable change"),
        ("speedup", 2.7, 0.8, ""),
        ("backend", 3.3, 1.1, ": it moved as well, so the change is in what both share"),
    ],
)
def test_what_eager_beside_it_says_of_the_change(tmp_path, metric, eager, factor, end):
    """Eager took 3 ms before; factor: of the metric."""
    script = Script.step(16, at=9, by=factor, metric=metric, sd=0.002)
    script.eager = {str(number): eager for number in range(9, 16)}
    bisected(script, tmp_path)
    text = main_text(result_of(Bisection(read(tmp_path))))
    (line,) = [line for line in text.splitlines() if line.startswith("- eager beside it: ")]
    assert line.partition("%)")[2] == end


def test_where_the_nights_went_back_the_loss_of_the_change_has_its_own_size(tmp_path):
    result = dataclasses.replace(
        result_of(bisected(Script.step(9, 4, by=0.8), tmp_path)), went_back=True, alert=7
    )
    own, loss = main_text(result).splitlines()[2:4]
    assert own.startswith("- eager latency: **-20.3")
    assert own.endswith("better; 1.004 ms → 0.7996 ms")
    assert loss.startswith("- the nights of alert 7 went back to a revision without it: eager latency **+25.")
    assert loss.endswith("worse; 0.7996 ms → 1.004 ms")


def test_what_lies_between_two_culprits_is_neither_good_nor_bad(tmp_path):
    script = Script.step(16, at=11, by=9.0)
    script.levels.update({str(number): 1.5 for number in range(4, 11)})
    (stage,) = result_of(bisected(script, tmp_path)).ranges
    sides = {tested.place: tested.shown_side for tested in stage.tested}
    assert {place: sides[place] for place in (0, 3, 4, 10, 11, 15)} == {
        0: "good", 3: "good", 4: "between", 10: "between", 11: "bad", 15: "bad",
    }  # fmt: skip


def test_a_bisection_on_its_way_says_where_it_is(tmp_path):
    script = Script.step(60, at=20)
    begin(script, tmp_path)
    result = result_of(Bisection(read(tmp_path)))
    assert "Not finished: comparing the two ends" in markdown(result)
    with pytest.raises(LimitReached):
        go_on(script, tmp_path, most_builds=4)
    text = markdown(result_of(Bisection(read(tmp_path))))
    assert re.search(r"Not finished: searching; \d+ of 59 revisions left", text)


def test_an_end_that_cannot_be_measured(tmp_path):
    script = Script.step(10, at=5, unbuildable={"0": "gcc: no"})
    assert "`0`: gcc: no" in markdown(result_of(bisected(script, tmp_path)))


def test_eager_that_moved_as_well_is_not_blamed_on_the_back_end(tmp_path):
    script = found_case()
    measure = script.measure

    def both(built, log, fresh):
        reading, record = measure(built, log, fresh)
        slower = 1.08 if int(built.revision.label) >= 63 else 1.0
        return dataclasses.replace(reading, beside={"eager_ms": reading.beside["eager_ms"] * slower}), record

    script.measure = both
    result = result_of(bisected(script, tmp_path))
    assert "it moved as well" in markdown(result)
    assert headline(result) == "compiled latency of timm/resnet18: found 63"


def test_a_refuted_culprit_is_in_the_headline(tmp_path):
    script = Script.step(30, at=10)
    measure, true = script.measure, dict(script.levels)

    def measured(built, log, fresh):
        script.levels = dict.fromkeys(true, 1.0) if fresh else true
        return measure(built, log, fresh)

    script.measure = measured
    result = result_of(bisected(script, tmp_path))
    assert "12 was found, and refuted by re-measurement" in headline(result)
    text = markdown(result)
    assert "not confirmed against `11`" in text
    assert "Found first and refuted: `10` change 10." in text
    assert "The search continued with them." in text


def test_of_two_culprits_only_the_refuted_one_is_called_refuted(tmp_path):
    script = Script.step(64, at=20, by=1.1)
    script.levels.update({str(n): 1.32 for n in range(45, 64)})
    result = result_of(bisected(script, tmp_path))
    culprit, other = result.culprits
    fell = dataclasses.replace(other, confirmed="not confirmed")
    result = dataclasses.replace(result, word="found, not confirmed", culprits=(culprit, fell))
    assert "found 20; 45 was found, and refuted by re-measurement" in headline(result)
