"""The summary of a run: golden files of the card and the table, at several widths of the terminal."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from perfdash.records import Status
from perfdash.report.model_card import calls_to_pay_off, headline, hints
from perfdash.report.run_summary import summary
from tests.report.golden_files import golden
from tests.report.results import a_night, failed, good, info

WIDTHS = (80, 60, None)


def all_failed():
    return [
        failed("one", Status.MODEL_FAIL_TO_LOAD, "load", "Unknown model"),
        failed("two", Status.TIMEOUT, "compile", "not done in time"),
    ]


def two_backends():
    return [
        good("fast", 1.4, "faster", batch_size=8),
        good("fast", 1.0, "equivalent", backend="aot-eager", batch_size=8),
        good("fast", 1.9, "faster", dtype="bfloat16", batch_size=8),
    ]


def one_model(ratio=0.48, verdict="slower", **change):
    result = good("net.make", ratio, verdict, "processes", **change)
    result.eager_ms.median, result.backend_ms.median = 0.05, 0.05 / ratio
    result.warm_compilation_s = 0.7
    result.eager_peak_bytes, result.backend_peak_bytes = 2_119_680, 2_111_488
    result.accuracy = {"status": "pass", "distance": {"relative_rmse": 2.5e-7, "cosine": 1.0}}
    result.notes.append("a peak of 2.0 MiB is too small for a compression ratio")
    return result


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("name", "results", "state"),
    [
        ("night", a_night(), "done"),
        ("all_failed", all_failed(), "done"),
        ("two_backends", two_backends(), "interrupted"),
        ("card", [one_model()], "done"),
        ("card_failed", [failed("net.make", Status.CRASH, "compile", "ended by SIGSEGV")], "done"),
    ],
)
def test_summary(name, results, state, width):
    text = summary(results, info(len(results), state), width)
    golden(f"summary_{name}_{width or 'wide'}.txt", text + "\n")
    if width:
        assert max(len(line) for line in text.splitlines() if "  perfdash show" not in line) <= width


def test_commands_that_show_more_name_the_run_and_are_quoted():
    """A run of another folder than `runs`, of a file that is named in any way; copied from one line."""
    crash = failed("my [old] net.make", Status.CRASH, "compile", "ended by SIGSEGV")
    card = summary([crash], info(1), 40, Path("my runs/2026_host"))
    assert any(
        shlex.split(line) == ["perfdash", "show", "my runs/2026_host", "--model", "my [[]old[]] net.make"]
        for line in card.splitlines()
        if "perfdash show" in line
    )
    table = summary(a_night(), info(7), 60, Path("my runs/2026_host"))
    assert shlex.split(table.splitlines()[-1]) == ["perfdash", "show", "my runs/2026_host", "--wide"]


def test_long_names_are_cut_where_nothing_else_is_left_to_leave_out():
    results = [good(f"a_very_long_name_of_a_model_{n}.with_its_tag", 1.1, "faster") for n in (1, 2)]
    narrow, wide = summary(results, info(2), 60), summary(results, info(2), None)
    assert max(map(len, narrow.splitlines())) <= 60
    assert results[0].case.model not in narrow
    assert results[0].case.model in wide


def test_nothing_is_lost_without_a_width():
    text = summary(a_night(), info(7))
    for column in ("suite", "batch", "dtype", "compile CPU s", "memory ratio", "graphs", "clipped mean"):
        assert column in text
    assert "Not shown" not in text


def test_what_matters_comes_first():
    lines = summary(a_night(), info(7), 80).splitlines()
    begin = next(n for n, line in enumerate(lines) if line.startswith("model"))
    assert [line.split()[0] for line in lines[begin + 1 : begin + 8]] == [
        "wrong", "crashed", "too_big", "slow", "uncaptured", "fast", "left_out",
    ]  # fmt: skip


def test_a_null_far_out_of_bounds_stands_above_all_numbers():
    disturbed = info(7)
    disturbed.noise["null"]["worst"] = 0.176
    text = summary(a_night(), disturbed)
    assert text.index("WARNING: this machine was disturbed") < text.index("speedup")
    assert "by at most 17.6" in text
    assert "WARNING" not in summary(a_night(), info(7))
    disturbed.cases = 1
    text = summary([one_model()], disturbed, 80)
    assert text.startswith("WARNING")
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("session", "words"), [({}, "in 2 slots, cores 0 + 1"), ({"at_once": 1}, "in 1 of 2 slots")]
)
def test_slots_that_the_null_gave_up_are_not_counted(session, words):
    run = info(7)
    run.sessions = [{"slots": [{"host": "h", "cores": [core]} for core in (0, 1)], **session}]
    assert words in summary(a_night(), run)


def test_a_resumed_run_that_had_nothing_left_was_measured_where_the_session_before_was():
    run = info(7)
    run.configuration["cores"] = "auto"
    run.sessions = [{"slots": [{"host": "h", "cores": [1]}]}, {"slots": []}]
    assert "1 thread on core 1\n" in summary(a_night(), run)


def test_notes_and_failures_name_the_result_where_a_model_has_several():
    default, dynamic = (good("net", 1.2, "faster", configuration=name, dynamic=name == "dynamic")
                        for name in ("default", "dynamic"))  # fmt: skip
    crashed = failed("net", Status.CRASH, "compile", "ended by SIGSEGV in phase compile")
    crashed.case = replace(crashed.case, backend="aot-eager")
    for result, note in ((default, "a peak of 2.3 MiB"), (dynamic, "a peak of 2.4 MiB")):
        result.notes += [note, "two of three"]
    for result in (default, dynamic, crashed):
        result.notes.append("all of them")
    other = good("other", 1.1, "faster", configuration="dynamic", dynamic=True)
    other.notes.append("all of them")
    lines = summary([default, dynamic, crashed, other], info(4)).splitlines()
    assert lines[lines.index("Why") + 1] == (
        "  net with aot-eager (default): crash (RuntimeError) in compile: ended by SIGSEGV in phase compile"
    )
    assert lines[lines.index("Notes") + 1 :] == [
        "  net with inductor (default): a peak of 2.3 MiB",
        "  net with inductor (default), net with inductor (dynamic): two of three",
        "  net, other: all of them",
        "  net with inductor (dynamic): a peak of 2.4 MiB",
    ]


def test_models_of_one_name_are_named_with_their_suite():
    one, two, other = (failed(model, Status.CRASH, "compile", "SIGSEGV") for model in ("net", "net", "other"))
    two.case = replace(two.case, suite="huggingface")
    for result, note in ((one, "small peak"), (one, "both"), (two, "both")):
        result.notes.append(note)
    lines = summary([one, two, other], info(3)).splitlines()
    place = lines.index("Why")
    why = "crash (RuntimeError) in compile: SIGSEGV"
    assert lines[place + 1 :] == [
        f"  timm/net: {why}", f"  huggingface/net: {why}", f"  other: {why}", "",
        "Notes", "  timm/net: small peak", "  timm/net, huggingface/net: both",
    ]  # fmt: skip


@pytest.mark.parametrize("status", [Status.EAGER_TWO_RUNS_DIFFER, Status.NO_FINITE_OUTPUT])
def test_why_names_what_differs_of_a_result_that_no_error_ended(status):
    result = good("net", 1.2, "faster")
    result.status, result.accuracy = status, {"status": status.value, "detail": "out differs by 0.5"}
    lines = summary([result, good("other", 1.1, "faster")], info(2)).splitlines()
    assert lines[lines.index("Why") + 1] == f"  net: {status.value}: out differs by 0.5"


def test_the_means_name_configurations_as_the_results_do():
    results = [good("net", 1.2, "faster", configuration=name, dynamic=name == "dynamic")
               for name in ("default", "dynamic")]  # fmt: skip
    text = summary(results, info(2))
    assert "inductor default " in text
    assert "static" not in text


def test_the_summary_names_commits_of_packages():
    run = info(4)
    run.environment["worker"] = {
        **run.environment["worker"],
        "packages": {"lib": "1.0", "numpy": "2"},
        "commits": {"lib": "c" * 40},
    }
    assert f"With: torch 2.15.0, lib 1.0 {'c' * 10}\n" in summary(a_night(), run)


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("faster", "torch.compile makes net.make FASTER: 1.25x (1.23 to 1.27)"),
        ("slower", "torch.compile makes net.make SLOWER: 1.25x"),
        ("equivalent", "NO DIFFERENCE to the speed of net.make"),
        ("inconclusive", "NOT CLEAR whether torch.compile makes net.make faster or slower"),
        ("disturbed", "Other programs disturbed the measurement of net.make"),
    ],
)
def test_headline_of_each_verdict(verdict, words):
    assert words in headline(one_model(1.25, verdict))


def test_headlines_of_other_results():
    wrong = one_model()
    wrong.status, wrong.accuracy = Status.FAIL_ACCURACY, {"detail": "out: off by 3"}
    assert headline(wrong) == "torch.compile makes net.make compute WRONG outputs: out: off by 3"
    uncaptured = one_model()
    uncaptured.capture = {"graphs": 0}
    assert "captured NOTHING of net.make" in headline(uncaptured)
    assert headline(one_model(1.2, "faster", backend="openvino")).startswith("openvino makes")
    skipped = failed("m", Status.SKIPPED, None, "")
    skipped.skip_reason = "needs a GPU"
    assert headline(skipped) == "m was skipped: needs a GPU"


def test_a_run_that_measured_nothing_has_no_place_and_no_noise():
    skipped = failed("m", Status.SKIPPED, None, "")
    skipped.skip_reason = "needs a GPU"
    for results in ([skipped], [skipped, skipped]):
        text = summary(results, replace(info(len(results)), environment={}, sessions=[]))
        assert "needs a GPU" in text
        assert "?" not in text
        assert "noise" not in text.lower()


def test_pays_off():
    result = one_model(1.25, "faster")  # 20 s of compiling, 0.01 ms saved by a call
    assert calls_to_pay_off(result) == pytest.approx(2_000_000)
    assert calls_to_pay_off(one_model(1.25, "inconclusive")) is None
    assert calls_to_pay_off(one_model()) is None


@pytest.mark.parametrize("verdict", ["faster", "slower", "equivalent", "inconclusive", "disturbed"])
@pytest.mark.parametrize(
    "status", [Status.FAIL_ACCURACY, Status.EAGER_TWO_RUNS_DIFFER, Status.NO_FINITE_OUTPUT]
)
def test_a_result_that_did_not_pass_never_pays_off(status, verdict):
    """It is timed all the same, but nobody is to run it, whatever it saves."""
    result = one_model(1.25, verdict, batch_size=64)
    result.status = status
    assert calls_to_pay_off(result) is None
    text = summary([result], info(1))
    assert "pays off" not in text
    assert "hint" not in text


@pytest.mark.parametrize(
    ("result", "hint"),
    [
        (one_model(), "try --batch-size 64"),
        (one_model(batch_size=64), None),
        (one_model(1.05, "inconclusive", batch_size=64), "try --processes"),
        (one_model(1.05, "disturbed", batch_size=64), "--cores"),
    ],
)
def test_hints(result, hint):
    found = hints(result)
    assert [hint in text for text in found] == ([True] if hint else [])


def test_one_process_is_named_as_the_reason_for_no_verdict():
    result = one_model(1.05, "inconclusive", batch_size=64)
    result.speedup.basis = "within"
    (hint,) = hints(result)
    assert "leave --processes 1 out" in hint
    result.notes.append("1 of 2 processes failed")
    (hint,) = hints(result)
    assert "1 of 2 processes failed" in hint
    assert "--processes" not in hint


def test_a_graph_break_is_a_hint():
    result = one_model(batch_size=64)
    result.capture = {"graphs": 3, "graph_breaks": 2}
    assert "2 graph breaks: --env TORCH_LOGS=graph_breaks" in hints(result)[0]


def test_a_card_of_several_sizes_says_what_a_step_is():
    result = good("net.make", 2.0, "faster", "processes", scenario="sizes", batch_size=8)
    result.conditions = {"sizes": "1,4,16", "sizes_of": "batch"}
    text = summary([result], info(1))
    assert "net.make, sizes, batch 1, 4, 16, float32" in text
    assert "per step of batch 1, 4, 16" in text
    assert "after 2,000 steps (" in text
    assert "batch size 8" not in text
    result.conditions = {"sizes": "32,64", "sizes_of": "sequence"}
    text = summary([result], info(1))
    assert "net.make, sizes, batch size 8, sequence 32, 64, float32" in text
    assert "per step of sequence 32, 64" in text


def test_the_table_of_several_models_has_the_sizes_of_a_step():
    results = [good(name, 2.0, "faster", scenario="sizes", batch_size=8) for name in ("a", "b")]
    for result in results:
        result.conditions = {"sizes": "1,4,16", "sizes_of": "batch"}
    assert ", batch 1, 4, 16, " in summary(results, info(2), None)
    results[1].conditions["sizes"] = "2,3"
    text = summary(results, info(2), None)
    assert "  1, 4, 16  " in text
    assert "batch size 8" not in text
