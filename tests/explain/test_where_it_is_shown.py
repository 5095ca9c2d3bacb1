"""The sentence and the code where people look: comment, issue, page of the cause, bisection."""

from __future__ import annotations

import shlex
import zlib
from dataclasses import replace
from types import SimpleNamespace

import pytest

from perfdash.detect.alert_evidence import gather
from perfdash.detect.causes import causes, gather_in_causes
from perfdash.explain import case_sides
from perfdash.explain.code_difference import code_difference
from perfdash.explain.structure_comparison import KernelChange, compare, side_of
from perfdash.history import alert_store
from perfdash.history.generated_code import load
from perfdash.history.ingest import take_in
from perfdash.history.queries import list_runs, read_run
from perfdash.history.results import Row
from perfdash.history.store import open_store
from perfdash.publish.tracked_regressions import tracked_regressions
from perfdash.records import Case
from perfdash.report.comment import comment
from perfdash.report.night import of_history
from perfdash.site import cause_page
from perfdash.site.build import build
from tests.detect.simulated import farm, judge_last, judge_nights, slower
from tests.explain.sides import kernel, structure
from tests.history.made import run

SLOWER_FROM, NIGHTS = 30, 34
WRAPPER = """cpp_fused_add_relu_0 = async_compile.cpp_pybinding(['float*'], r'''
extern "C" void kernel(float* out) { BODY }
''')

async_compile.wait(globals())
def call(args):
    cpp_fused_add_relu_0(args)
"""
SENTENCE = "Other code in 1 of 1 kernel with the same operators: cpp_fused_add_relu_0."


def with_structure(night, row):
    """The result of the model that gets slower, with the code of its night."""
    if row.case.model != "model03":
        return row
    body = "<script>alert(1)</script>" if night >= SLOWER_FROM else "plain();"
    made = structure(kernel("add relu", 0, body))
    return replace(
        row, structure=made, code={"graph0.py": zlib.compress(WRAPPER.replace("BODY", body).encode())}
    )


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """(address, nights) of a history in which one model gets slower, and its code changes with that."""
    runs = [
        replace(night_run, rows=tuple(with_structure(night, row) for row in night_run.rows))
        for night, night_run in enumerate(farm(NIGHTS, models=6, change=slower("model03", SLOWER_FROM, 1.4)))
    ]
    address = str(tmp_path_factory.mktemp("explained") / "history.db")
    with open_store(address) as store:
        take_in(store, runs)
        judge_last(store, 8)
    return address, runs


def test_the_comment_has_the_sentence_and_no_code(history):
    address, runs = history
    with open_store(address) as store, store.read() as connection:
        night = of_history(connection, runs[-1])
    (cause,) = night.causes
    assert cause.why.startswith("Other packages (torch: ")
    assert cause.why.endswith(f"; o{SENTENCE[1:]}")
    text = comment(night)
    sentence = SENTENCE[1:]
    assert sentence.replace("_", "\\_") in text or sentence in text
    assert "script" not in text
    assert "kernel(float" not in text


def test_an_issue_has_the_sentence_and_no_code(history):
    address, runs = history
    from perfdash.report.night import Night

    (issue,) = tracked_regressions(Night(runs[-1]), address, None).issues
    assert "Why: Other packages (torch: " in issue.body
    assert "other code in 1 of 1 kernel" in issue.body
    assert "kernel(float" not in issue.body


def test_the_page_of_a_cause_has_both_sides_and_the_folded_code(history, tmp_path):
    address, _ = history
    with open_store(address) as store:
        build(store, tmp_path / "site", jobs=1)
    (page,) = (tmp_path / "site").glob("causes/*.html")
    text = page.read_text()
    assert SENTENCE[1:] in text
    folded = text[text.index("<details><summary>Generated code that differs") :]
    code = folded[: folded.index("</details>")]
    assert "-extern &#34;C&#34; void kernel(float* out) { plain(); }" in code
    assert "+extern" in code
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in code
    assert "<script>alert" not in text
    assert '<tr><th scope="row">kernels</th><td class="num">1</td>' in text


@pytest.mark.parametrize("without", [slice(SLOWER_FROM), slice(SLOWER_FROM, NIGHTS)])
def test_code_of_one_side_is_not_shown_as_new_code(history, tmp_path, without):
    """A night with --no-code names its kernels, and has no code to compare."""
    _, runs = history
    runs = list(runs)
    runs[without] = [
        replace(night, rows=tuple(replace(row, code={}) for row in night.rows)) for night in runs[without]
    ]
    with open_store(str(tmp_path / "history.db")) as store:
        take_in(store, runs)
        judge_last(store, 8)
        build(store, tmp_path / "site", jobs=1)
    (page,) = (tmp_path / "site").glob("causes/*.html")
    text = page.read_text()
    assert "Generated code that differs" not in text
    assert any(f"no code was kept of {night.run.name}." in text for night in runs[without])


def test_a_kernel_that_is_new_is_shown_beside_a_side_without_code():
    added, changed = kernel("add"), kernel("mul", 1)
    other = {**changed, "fingerprint": "other"}
    explanation = SimpleNamespace(
        kernels=[KernelChange("new", (), (added,)), KernelChange("changed", (changed,), (other,))]
    )
    code = "".join(
        f"{each['name']} = async_compile.cpp_pybinding([], '''\nvoid f();\n''')\n" for each in (added, other)
    )
    code += "async_compile.wait(globals())\n"
    assert code_difference(explanation, {}, {"graph0.py": code}).splitlines()[1:] == [
        "+++ cpp_fused_add_0", "@@ -0,0 +1 @@", "+void f();"
    ]  # fmt: skip


def test_the_command_of_a_cause_names_one_case_in_a_shell(tmp_path):
    """The model was measured in two dtypes, and a run's name has a space."""
    rows = [Row(Case("timm", "a model", dtype=dtype), "pass", {}) for dtype in ("float32", "bfloat16")]
    with open_store(str(tmp_path / "history.db")) as store:
        take_in(store, [run("2026-11-01", rows, name="the first night"), run("2026-11-02", rows)])
        with store.read() as connection:
            before, after = (read_run(connection, line) for line in list_runs(connection))
            explanation = compare(side_of(before.run, before.rows[1]), side_of(after.run, after.rows[1]))
            words = shlex.split(cause_page._structure(explanation).command)
    assert words[:2] == ["perfdash", "explain"]
    assert (words[2], words[4:]) == (after.run.name, ["--against", before.run.name])
    assert case_sides.row_of(after, words[3]) is after.rows[1]


def test_an_explanation_changes_no_rank(history, monkeypatch):
    address, runs = history

    def seen():
        with open_store(address) as store, store.read() as connection:
            causes = of_history(connection, runs[-1]).causes
        return [(cause.group, cause.headline, cause.evidence, cause.attribution) for cause in causes]

    explained = seen()
    monkeypatch.setattr("perfdash.report.night.why_of_cause", lambda connection, cause: "")
    assert seen() == explained


def test_only_two_texts_are_stored_for_all_nights(history):
    """A structure and a graph before the change, and after it."""
    address, _ = history
    with open_store(address) as store, store.read() as connection:
        lines = list_runs(connection)
        digests = {
            str(structure_and_code)
            for line in lines
            for structure_and_code in load(connection, line.id).values()
        }
        (alert,) = alert_store.load(connection)
        (evidence,) = gather_in_causes(connection, [alert])
        explanation, metric = case_sides.of_alert(connection, alert.id)
    assert (len(lines), len(digests)) == (NIGHTS, 2)
    assert metric == "backend_ms"
    assert (explanation.before.run.name, explanation.after.run.name) == (
        evidence.good.name,
        evidence.bad.name,
    )


def test_an_alert_is_explained_by_the_builds_around_its_cause(tmp_path):
    """Ten models get slower with one build; by its own noisy nights a model's alert may be dated later."""

    def change(night, name, values):
        if int(name.removeprefix("model")) <= 9 and night >= 28:
            values["backend_ms"] *= 1.04
        return None if (night, name) == (28, "model01") else values

    old, new = (structure(kernel("add relu", 0, body)) for body in ("old();", "new();"))
    nights = [
        replace(
            night_run,
            rows=tuple(replace(row, structure=new if night >= 28 else old) for row in night_run.rows),
        )
        for night, night_run in enumerate(farm(34, models=14, noise=0.012, change=change))
    ]
    with open_store(str(tmp_path / "history.db")) as store:
        judge_nights(store, nights, first=30)
        with store.read() as connection:
            found = causes(gather(connection, alert_store.load(connection, states=alert_store.SHOWN)))
            (cause,) = [cause for cause in found if len(cause.members) > 5]
            explained = {
                member.case.model: case_sides.of_alert(connection, member.alert.id)[0]
                for member in cause.members
            }
            of_cause = case_sides.explain_cause(connection, cause)
    own = {member.case.model: (member.good.started[:10], member.bad.started[:10]) for member in cause.members}
    assert (cause.good.started[:10], cause.bad.started[:10]) == ("2026-01-28", "2026-01-29")
    assert set(own.values()) > {("2026-01-28", "2026-01-29")}, "one is dated otherwise by its own nights"
    for model, explanation in [*explained.items(), (of_cause.after.case.model, of_cause)]:
        sides = explanation.before.run, explanation.after.run
        measured_on = "2026-01-30" if model == "model01" else "2026-01-29"  # not measured that night
        assert [side.started[:10] for side in sides] == ["2026-01-28", measured_on]
        assert explanation.same_code is False


def test_sides_of_a_bisection_come_from_its_records():
    from perfdash.explain.explanation_sentence import sentence
    from perfdash.records import to_json
    from tests.report.results import good

    records = []
    for body in ("plain();", "other();"):
        result = good("vit_tiny", 1.2, "faster")
        result.structure = structure(kernel("add relu", 0, body))
        records.append(to_json(result))
    before, after = (
        case_sides.side_of_record(record, name) for record, name in zip(records, "ab", strict=True)
    )
    assert sentence(compare(before, after), "backend_ms") == SENTENCE
