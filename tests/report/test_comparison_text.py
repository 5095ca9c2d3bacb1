"""Two runs side by side; PERFDASH_UPDATE_GOLDEN=1 writes the golden files anew."""

import csv
import io
import json
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest

from perfdash.detect.comparison import ComparedRuns, PastNoise, compare
from perfdash.errors import UsageError
from perfdash.history.results import from_run
from perfdash.records import Status
from perfdash.report.comparison_text import comparison, to_csv, to_plain
from perfdash.report.gates import comparison_gate, night_gate
from perfdash.report.junit import write_comparison
from perfdash.report.night import against, compared_with, headline
from tests.history.made import case, row, run
from tests.report.golden_files import golden
from tests.report.results import failed, good, info

OLD = [
    good("same", 1.4, "faster"),
    good("slower", 1.5, "faster"),
    good("noisy", 1.2, "faster", basis="within"),
    good("breaks", 1.1, "faster"),
    good("gone", 1.0, "equivalent"),
    good("other_batch", 1.0, "equivalent", batch_size=1),
]


def compiled(model, was, ratio, verdict, **options):
    """A result whose eager latency is that of the old side: what changed is the compiled model."""
    result = good(model, ratio, verdict, **options)
    result.eager_ms = good(model, was, verdict).eager_ms
    result.backend_ms = replace(result.backend_ms, median=10 * was / ratio)
    return result


NEW = [
    compiled("slower", 1.5, 1.2, "faster"),
    compiled("same", 1.4, 1.41, "faster"),
    compiled("noisy", 1.2, 1.6, "faster", basis="within"),
    failed("breaks", Status.CRASH, "compile", "ended by SIGSEGV in phase compile"),
    good("appeared", 1.0, "equivalent"),
    good("other_batch", 2.0, "faster", batch_size=8),
]


def side(results, **change):
    return ComparedRuns("x", (from_run(replace(info(6), **change), results, "runs/x"),))


@pytest.fixture(scope="module")
def compared():
    return compare(side(OLD), side(NEW, id="2026-11-22T00-00-00Z_host"))


def test_golden(compared):
    golden("comparison.txt", comparison(compared) + "\n")


def test_csv_has_a_line_a_case(compared):
    lines = list(csv.DictReader(io.StringIO(to_csv(compared))))
    by_model = {line["model"]: line for line in lines}
    assert set(by_model) == {"same", "slower", "noisy", "breaks"}
    assert float(by_model["slower"]["speedup_ratio"]) == pytest.approx(0.8)
    assert by_model["slower"]["speedup_significant"] == "True"
    assert by_model["noisy"]["speedup_p"] == "", "nothing is known of its noise"
    assert by_model["breaks"]["new_status"] == "crash"


def test_no_name_in_csv_is_a_formula():
    of = case("@SUM(1)", configuration="+x", settings='{"mode": "x"}')
    of = replace(of, suite="=1+1", backend="-y\u202e")
    sides = [ComparedRuns(name, (run(rows=[row(of=of)]),)) for name in ("old", "new")]
    (line,) = csv.DictReader(io.StringIO(to_csv(compare(*sides))))
    assert [line[name] for name in ("suite", "model", "backend", "configuration", "settings")] == [
        "'=1+1", "'@SUM(1)", r"'-y\u202e", "'+x", '{"mode": "x"}',
    ]  # fmt: skip
    assert (line["batch_size"], line["old_status"], line["speedup_old"]) == ("1", "pass", "2.0")


def test_the_configuration_that_changed_is_named():
    freezing = {"configuration": "freezing", "settings": '{"mode": "x"}'}

    def nights(factor):
        cases = [case("m", amp_dtype="bfloat16", **way) for way in ({}, freezing)]
        return tuple(
            run(f"2026-11-{day:02}", [row(of=of, eager_ms=20.0, backend_ms=(10 + day / 100) * by)
                                      for of, by in zip(cases, (1.0, factor), strict=True)])
            for day in range(1, 6)
        )  # fmt: skip

    compared = compare(ComparedRuns("old", nights(1.0)), ComparedRuns("new", nights(1.2)))
    changes = comparison(compared).split("Changed: 1")[1].split("All cases")[0]
    assert "timm/m bs 1 freezing " in changes
    lines = list(csv.DictReader(io.StringIO(to_csv(compared))))
    assert {(line["configuration"], line["settings"], line["dynamic"]) for line in lines} == {
        ("default", "", "False"),
        ("freezing", '{"mode": "x"}', "False"),
    }
    assert list(lines[0])[-5:] == ["amp_dtype", "dynamic", "configuration", "settings", "machines"]
    assert lines[0]["amp_dtype"] == "bfloat16"


def test_each_row_names_its_whole_case():
    """Cases of one model that differ in nothing but their threads, suite, scenario, or in autocast."""
    cases = [
        case("m", threads=1),
        case("m", threads=4),
        replace(case("m", threads=4), suite="torchbench"),
        case("m", scenario="training"),
        case("m", dtype="bfloat16"),
        case("m", dtype="amp", amp_dtype="bfloat16"),
    ]
    old = run(rows=[row(of=of) for of in cases])
    text = comparison(
        compare(
            *(
                ComparedRuns("x", (night,))
                for night in (old, run(rows=[row("m", "crash", of=of) for of in cases]))
            )
        )
    )
    changes, _, table = text.partition("Changed: 6")[2].partition("All cases in both")
    for part in (changes, table):
        lines = [line for line in part.splitlines() if "crash" in line]
        assert len(set(lines)) == 6
        assert any("timm/m bs 1 4 threads " in line for line in lines)


def test_the_gate_names_the_configuration_dtype_and_threads_of_a_case():
    cases = [case("net"), case("net", dtype="bfloat16"), case("net", threads=4)]
    nights = [run(rows=[row("net", status, of=of) for of in cases]) for status in ("pass", "crash")]
    warned = []
    assert comparison_gate(compare(*(ComparedRuns("x", (night,)) for night in nights)), warned.append) == 1
    names = "timm/net bs 1, timm/net bs 1 4 threads, timm/net bs 1 bfloat16"
    assert ", ".join(sorted(warned[0].partition("3 of 3: ")[2].split(", "))) == names


def test_json_is_json(compared):
    plain = json.loads(json.dumps(to_plain(compared)))
    assert {entry["case"]["model"] for entry in plain["cases"] if entry["regressed"]} == {"slower", "breaks"}
    assert [case["model"] for case in plain["only_new"]] == ["appeared", "other_batch"]
    assert plain["means"][0]["metric"] == "speedup"
    assert plain["means"][0]["cases"] == 3


@pytest.mark.parametrize(
    ("eager_ms", "words", "ratio"),
    [(12.0, "took 20% longer on the new side", 1.2), (8.0, "took 20% less time on the new side", 0.8)],
)
def test_eager_that_took_another_time_is_said(eager_ms, words, ratio):
    nights = [run(rows=[row("a", eager_ms=value)]) for value in (10.0, eager_ms)]
    compared = compare(*(ComparedRuns("x", (night,)) for night in nights))
    assert words in comparison(compared)
    assert to_plain(compared)["eager_moved"] == pytest.approx(ratio)
    night = against(nights[1], compared)
    assert words in " ".join(compared_with(night))
    assert night.caution is None or "Eager" not in night.caution, "a gate is not about this"


def test_a_model_that_was_edited_is_named_before_the_machine():
    def text(old, new):
        nights = [
            run(rows=[replace(row("a", eager_ms=ms, graph_breaks=breaks), structure={"model_files": files})])
            for ms, breaks, files in ((10.0, 0, old), (12.0, 1, new))
        ]
        return comparison(compare(*(ComparedRuns("x", (night,)) for night in nights)))

    same = {"net.py": "1", "layers.py": "2"}
    edited = text(same, {"net.py": "3", "layers.py": "2"})
    assert "net.py was edited, or the machine, or\n" in edited
    assert "net.py, layers.py were edited, or the machine" in text(same, {"net.py": "3", "layers.py": "4"})
    assert "edited" not in text(same, same)
    assert "edited" not in text({}, same), "an older run has no digests"
    assert "edited" not in text({"net.py": "1"}, same), "imported now and not then is no edit"
    rows = [row("a", eager_ms=ms) for ms in (10.0, 12.0)]  # as a history gives them
    nights = [
        run(rows=[replace(each, case=replace(each.case, suite="own"))]) for each in rows
    ]  # of a history
    unknown = comparison(compare(*(ComparedRuns("x", (night,)) for night in nights)))
    assert "your model was edited, or the machine" in unknown


def test_only_what_is_compared_is_called_unchanged():
    """Graph breaks, for one, are not."""
    nights = tuple(run(f"2026-11-{day:02}", [row("a", backend_ms=10 + day / 100)]) for day in range(1, 7))
    text = comparison(compare(ComparedRuns("x", nights[:3]), ComparedRuns("x", nights[3:])))
    assert "No status changed, and no latency, compilation time or peak memory by more than noise" in text


def test_nothing_in_common():
    compared = compare(side(OLD[5:]), side(NEW[5:]))
    text = comparison(compared)
    assert "0 cases in both" in text
    assert "Nothing to compare: no case is in both (batch_size 1 | 8)" in text
    assert "No status changed" not in text
    assert to_plain(compared)["nothing_to_compare"] == "no case is in both (batch_size 1 | 8)"


def test_cases_that_were_measured_on_one_side_only():
    lost = [failed("same", Status.INFRA_ERROR, "load", "the disk is full")]
    assert "Nothing to compare: no case has a result on both sides" in comparison(
        compare(side(OLD[:1]), side(lost))
    )


def test_two_builds_with_which_no_model_runs_are_nothing_to_compare():
    """A job for pull requests was green where the machine had lost a package that all models need."""
    night = run(rows=[row("a", "fail_to_run"), row("b", "crash")])
    compared = compare(*(ComparedRuns("x", (night,)) for _ in range(2)))
    assert "Nothing to compare: no case passes on both sides" in comparison(compared)
    with pytest.raises(UsageError, match="no case passes on both sides"):
        comparison_gate(compared, print)


def test_nothing_in_common_fails_junit(tmp_path):
    write_comparison(tmp_path / "j.xml", compare(side(OLD[5:]), side(NEW[5:])))
    (suite,) = ET.parse(tmp_path / "j.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")


def test_a_report_against_nothing_in_common_says_so():
    old, new = side(OLD[5:]), side(NEW[5:])
    night = against(new.runs[0], compare(old, new))
    assert headline(night).endswith("not compared with other runs")
    assert night.untold == "nothing to compare: no case is in both (batch_size 1 | 8)"


def one_case(old, new, **verdict):
    rows = [replace(row("a", **values), **verdict) for values in (old, new)]
    return compare(*(ComparedRuns("x", (run(rows=[one]),)) for one in rows))


@pytest.mark.parametrize(
    "compared",
    [
        one_case({"speedup": 1.5}, {"speedup": 0.75}),
        one_case({"backend_ms": 1.0, "compilation_cpu_s": 9.0}, {"backend_ms": 2.0}, verdict="disturbed"),
    ],
    ids=["without intervals", "disturbed"],
)
def test_what_could_not_be_tested_is_not_called_unchanged(compared):
    text = comparison(compared)
    assert "Nothing to compare: numbers of 1 of 1 cases could not be tested" in text
    assert "No status changed" not in text
    with pytest.raises(UsageError, match="could not be tested"):
        comparison_gate(compared, print)


def test_the_cases_that_could_not_be_tested_are_counted(capsys):
    interval = {"speedup": 1.5, "speedup_low": 1.48, "speedup_high": 1.52}
    compared = one_case({**interval, "backend_ms": 1.0}, {**interval, "backend_ms": 2.0})
    words = "numbers of 1 of 1 cases could not be tested"
    text = comparison(compared)
    assert words in text.partition("No change was found in what could be compared")[2]
    assert "No status changed" not in text, "the latency is twice as long"
    assert comparison_gate(compared, print) == 0
    assert f"not checked: {words}" in capsys.readouterr().out


def test_cases_without_a_result_on_one_side_are_counted_and_are_no_change(tmp_path):
    """Not those that are left out on both sides: nothing is lost there."""
    ends = [("pass", "pass"), ("pass", "infra_error"), ("pass", "not_tonight"), ("skipped", "pass"),
            ("infra_error", "not_tonight"), ("skipped", "skipped")]  # fmt: skip
    nights = [
        run(
            f"2026-11-0{side + 1}",
            [row(f"m{place}", end[side], backend_ms=10.0) for place, end in enumerate(ends)],
        )
        for side in (0, 1)
    ]
    noise = {"backend_ms": {of.case: PastNoise(0.003, 40.0, np.ones(10)) for of in nights[0].rows}}
    compared = compare(*(ComparedRuns("x", (night,)) for night in nights), noise)
    words = (
        "3 of 6 cases have no result on one side (infra_error, not_tonight, skipped); "
        "1 of 6 cases has no result on either side (infra_error, not_tonight)"
    )
    assert to_plain(compared)["untested"] == words
    assert f"in what could be compared\nNot checked: {words}\n" in comparison(compared)
    warned = []
    assert comparison_gate(compared, warned.append) == 0
    assert warned == [f"--fail-on regression: not checked: {words}"]
    assert against(nights[1], compared).caution == words
    write_comparison(tmp_path / "j.xml", compared)
    assert len(list(ET.parse(tmp_path / "j.xml").iter("skipped"))) == 5


@pytest.mark.parametrize("state", ["done", "interrupted"])
def test_compare_and_report_give_one_answer_on_a_model_that_vanished(tmp_path, state):
    interval = {"speedup": 1.5, "speedup_low": 1.48, "speedup_high": 1.52}
    old = run(rows=[row(name, **interval) for name in "abcd"])
    new = run(rows=[row(name, **interval) for name in "abc"], state=state)
    compared = compare(ComparedRuns("x", (old,)), ComparedRuns("x", (new,)))
    warned, warned_by_report = [], []
    code = comparison_gate(compared, warned.append)
    assert night_gate(against(new, compared), warned_by_report.append) == code
    write_comparison(tmp_path / "j.xml", compared)
    (test,) = [test for test in ET.parse(tmp_path / "j.xml").iter("testcase") if "_d_" in test.get("name")]
    plain = to_plain(compared)
    if state == "done":
        assert code == 1
        assert warned == ["--fail-on regression: 1 of 4: timm/d bs 1 (no longer measured)"]
        assert "by more than noise\nVanished: timm/d bs 1\n" in comparison(compared)
        assert test.find("failure").get("message") == "no longer measured"
        assert [of["model"] for of in plain["vanished"]] == ["d"]
        assert plain["only_old"] == plain["vanished"]
        return
    why = "1 of 4 cases of the old side is missing from the new one, as it is not complete"
    assert code == 0
    assert warned == warned_by_report == [f"--fail-on regression: not checked: {why}"]
    assert test.find("skipped").get("message") == "missing from the new side, as it is not complete"
    assert plain["vanished"] == []
    assert plain["untested"] == why


def test_latencies_of_fast_models_have_four_digits():
    text = comparison(one_case({"backend_ms": 0.0201}, {"backend_ms": 0.0208}))
    assert "0.0201 -> 0.0208" in text


def test_numbers_all_by_different_methods_are_not_called_unchanged():
    """Accuracy and capture are measured as before, so only the statuses can be compared."""
    names = ("latency", "speedup", "compilation", "memory")
    nights = [
        run(rows=[row("a", speedup=speedup), row("b", "crash")], method=dict.fromkeys(names, method))
        for speedup, method in ((2.0, 1), (1.0, 2))
    ]
    compared = compare(*(ComparedRuns("x", (night,)) for night in nights))
    text = comparison(compared)
    assert "Nothing to compare: no number was measured by the same method on both sides" in text
    assert "No status changed" not in text
    with pytest.raises(UsageError, match="by the same method"):
        comparison_gate(compared, print)


def test_a_skipped_case_does_not_stand_for_numbers_that_could_not_be_tested():
    nights = [
        run(rows=[row("a", speedup=2.0), row("b")]),
        run(rows=[row("a", speedup=1.0), row("b", "skipped")]),
    ]
    compared = compare(*(ComparedRuns("x", (night,)) for night in nights))
    with pytest.raises(UsageError, match="numbers of 1 of 2 cases"):
        comparison_gate(compared, print)


def test_a_case_that_could_not_be_tested_does_not_pass_junit(tmp_path):
    interval = {"speedup_low": 1.48, "speedup_high": 1.52}
    spoilt = replace(row("a", speedup=0.75), verdict="disturbed")
    nights = [run(rows=[of, row("b", speedup=1.5, **interval)]) for of in (row("a", speedup=1.5), spoilt)]
    compared = compare(*(ComparedRuns("x", (night,)) for night in nights))
    write_comparison(tmp_path / "j.xml", compared)
    (suite,) = ET.parse(tmp_path / "j.xml").getroot()
    assert [suite.get(count) for count in ("tests", "failures", "skipped")] == ["2", "0", "1"]
    assert "numbers of 1 of 2 cases could not be tested" in to_plain(compared)["untested"]


def test_memory_and_means_have_four_digits_and_units():
    nights = [
        run(rows=[row("small", backend_peak_bytes=4e4 * by, compilation_cpu_s=12345)]) for by in (1, 1.5)
    ]
    sides = (ComparedRuns("x", (night,)) for night in nights)
    noise = {"backend_peak_bytes": {nights[0].rows[0].case: PastNoise(0.003, 40.0, np.ones(10))}}
    means, _, rest = comparison(compare(*sides, noise)).partition("Changed: 1")
    changes, _, cases = rest.partition("All cases in both")
    for part in (means, changes):
        assert "0.04 MB" in part
        assert "0.06 MB" in part
    assert "0.04 -> 0.06" in cases
    assert "12345 s" in means


def test_the_machines_of_sides_that_have_none_in_common_are_named():
    """Machines of a class differ: what differs between them is neither worse nor better."""
    nights = [run("2026-11-01", [row("a"), row("b")], host="bench-1"),
              run("2026-11-02", [row("a", eager_ms=21.0, backend_ms=13.0, speedup=1.6), row("b", "crash")],
                  host="bench-4")]  # fmt: skip
    noise = {name: {case("a"): PastNoise(0.005, 40.0, np.ones(10))} for name in ("backend_ms", "speedup")}
    both = compare(*(ComparedRuns("x", (night,)) for night in nights), noise)
    machines = "on another machine: bench-1 | bench-4"
    text = comparison(both)
    assert f"Measured {machines}. Machines of a class differ" in text
    assert "Changed: 1" in text
    assert "better" not in text
    assert to_plain(both)["machines"] == machines
    assert {line["machines"] for line in csv.DictReader(io.StringIO(to_csv(both)))} == {machines}
    warned = []
    assert comparison_gate(both, warned.append) == 1
    assert machines in warned[0]
    assert warned[1].endswith("1 of 2: timm/b bs 1")
    night = against(nights[1], both)
    assert [change.case.model for change in night.changes] == ["b"]
    assert machines in night.caution
    one_machine = compare(*(ComparedRuns("x", (nights[0],)) for _ in range(2)), noise)
    assert to_plain(one_machine)["machines"] is None
