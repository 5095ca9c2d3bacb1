"""The sentence of an explanation names what was changed, where the records have it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdash.explain.explanation_sentence import sentence
from perfdash.explain.explanation_text import text
from perfdash.explain.structure_comparison import ENVIRONMENT, compare, side_of
from perfdash.history.results import Row, from_result
from tests.explain.sides import BAD, BREAK, CASE, GOOD, LIBRARIES, kernel, side, structure
from tests.history.made import run, with_worker
from tests.report.results import good

RELU = kernel("relu", text="of relu")
OPERATORS = {"aten.addmm.default": 2, "aten.view.default": 4, "aten.gelu.default": 1}
PLAIN = structure(
    RELU, text="whole", model_files={"net.py": "1" * 16}, eager_operators=OPERATORS, registered_operators=[],
    failed_guards={},
)  # fmt: skip
EDITED = {**PLAIN, "model_files": {"net.py": "2" * 16}}
KEYED = {**RELU, "fingerprint": "keyed by other settings"}


def told(new, old=PLAIN, metric=None, values=({}, {}), status="pass", **change):
    before = side_of(run(GOOD).run, Row(CASE, "pass", values[0], structure=old))
    after = side_of(run(BAD, **change).run, Row(CASE, status, values[1], structure=new))
    return sentence(compare(before, after), metric)


def test_the_guard_that_fails_is_named():
    new = {**PLAIN, "recompiles": 2, "failed_guards": {"self.phase == 0 (net.py:7 in forward)": 2}}
    assert told(new) == "2 recompiles instead of 0: the guard self.phase == 0 (net.py:7 in forward) fails."
    assert "the guard" not in told({**new, "failed_guards": None})
    several = {"self.phase == 0 (net.py:7 in forward)": 1, "self.phase == 1 (net.py:7 in forward)": 1}
    assert "fails, and 1 more" in told({**new, "failed_guards": several})


def type_id(number):
    return f"___check_type_id(L['self'].o, {number}), type=<class '__main__.Foo'> (net.py:6 in g)"


DTYPE = "tensor 'x' dtype mismatch. expected Float, actual Double"
PHASE, MODE = "self.phase == 0 (net.py:{} in forward)", "self.mode == 1 (net.py:{} in forward)"


@pytest.mark.parametrize(("old", "new", "named"), [
    ({type_id(1): 1}, {type_id(2): 1, DTYPE: 1}, DTYPE),
    ({PHASE.format(14): 1}, {PHASE.format(15): 1, MODE.format(9): 1}, MODE.format(9)),
    ({MODE.format(3): 1}, {MODE.format(3): 1, MODE.format(9): 1}, MODE.format(9)),
    ({"__check_obj_id(f, 77)": 1}, {"__check_obj_id(f, 78)": 1, "__check_obj_id(g, 78)": 1},
     "__check_obj_id(g, 78)"),
])  # fmt: skip
def test_a_guard_that_failed_before_is_not_named_for_its_address_or_line(old, new, named):
    sides = [{**PLAIN, "recompiles": sum(guards.values()), "failed_guards": guards} for guards in (old, new)]
    assert told(sides[1], old=sides[0]) == f"2 recompiles instead of 1: the guard {named} fails."


@pytest.mark.parametrize(("old", "new"), [(type_id(1), type_id(2)), (PHASE.format(14), PHASE.format(15))])
def test_the_same_guards_of_two_processes_are_no_difference(old, new):
    sides = [side({**PLAIN, "recompiles": 1, "failed_guards": {guard: 1}}) for guard in (old, new)]
    assert compare(*sides).findings == ()


def test_a_break_has_its_place_in_the_users_code():
    new = {
        **EDITED, "break_reasons": {BREAK: 1}, "break_places": {BREAK: ["net.py:27 in forward"]}, "graphs": 2,
    }  # fmt: skip
    assert told(new).startswith(
        f"The model's file net.py was edited; 1 more graph break, so 2 graphs instead of 1 (net.py:27 in "
        f"forward: {BREAK})"
    )


def branch(line):
    return f"a branch that depends on data in net.py:{line} (generic_jump TensorVariable())"


def breaks(by_line):
    """Branches on data in net.py: line -> graph breaks."""
    reasons = {branch(line): count for line, count in by_line.items()}
    places = {branch(line): [f"net.py:{line} in forward"] for line in by_line}
    return {**PLAIN, "break_reasons": reasons, "break_places": places, "graphs": 3}


@pytest.mark.parametrize(("old", "new", "words"), [
    ({9: 2}, {10: 1}, "1 graph break fewer (net.py:9 in forward"),
    ({9: 1}, {10: 1, 20: 1}, "1 more graph break (net.py:10 in forward and net.py:20 in forward"),
])  # fmt: skip
def test_a_branch_that_moved_to_another_line_is_the_same_graph_break(old, new, words):
    reason = "a branch that depends on data in net.py (generic_jump TensorVariable())"
    assert told(breaks(new), old=breaks(old)) == f"{words}: {reason})."
    assert "break" not in told(breaks({10: 2}), old=breaks({9: 2}))


def test_the_number_of_graph_breaks_is_the_difference_of_all_reasons():
    old = {**PLAIN, "break_reasons": {"print": 3}, "graphs": 4}
    new = {**PLAIN, "break_reasons": {"item": 2}, "graphs": 3}
    assert told(new, old=old).startswith("1 graph break fewer, so 3 graphs instead of 4 (print)")
    assert told(old, old=new).startswith("1 more graph break, so 4 graphs instead of 3 (print)")
    other = {**PLAIN, "break_reasons": {"item": 3}, "graphs": 4}
    assert told(other, old=old).startswith("The graph breaks for another reason (item)")


def window(first, last, total):
    """A model with more graph breaks than reasons are kept of: `first` to `last` are."""
    reasons = {f"reason {number:02}": 1 for number in range(first, last + 1)}
    return {**PLAIN, "break_reasons": reasons, "graph_breaks": total, "graphs": total + 1}


@pytest.mark.parametrize(("old", "new", "words"), [
    (window(1, 20, 25), window(2, 21, 24), "1 graph break fewer, so 25 graphs instead of 26."),
    (window(2, 21, 25), window(1, 20, 26), "1 more graph break, so 27 graphs instead of 26."),
    (window(1, 20, 24), window(1, 20, 34), "10 more graph breaks, so 35 graphs instead of 25."),
    (window(1, 19, 19), window(1, 20, 34), "15 more graph breaks, so 35 graphs instead of 20 (reason 20)."),
    (window(1, 20, 25), window(1, 19, 19), "6 graph breaks fewer, so 20 graphs instead of 26 (reason 20)."),
])  # fmt: skip
def test_a_reason_that_is_not_kept_is_neither_new_nor_gone(old, new, words):
    assert told(new, old=old) == words


def test_a_break_that_leaves_the_kept_reasons_is_not_listed_as_gone():
    shown = text(compare(side(window(1, 20, 25)), side(window(2, 21, 24), BAD)))
    assert "reason" not in shown
    more = {**window(2, 21, 25), "break_reasons": {**window(2, 21, 24)["break_reasons"], "reason 02": 2}}
    assert "reason 02: 1 -> 2" in text(compare(side(window(1, 20, 25)), side(more, BAD)))


def test_breaks_by_line_are_not_compared_where_lines_are_missing():
    """Of two branches of a file, one may be among the reasons that are not kept."""
    old = {**breaks({9: 1}), "graph_breaks": 9}
    assert (
        told(breaks({9: 1, 20: 1}) | {"graph_breaks": 9}, old=old)
        == "The generated code and all loaded files are the same: the cause is the host."
    )


@pytest.mark.parametrize(("message", "end"), [("No memory.", "No memory."), ("m" * 200, "mmm...")])
def test_a_sentence_that_ends_with_a_message_has_one_full_stop(message, end):
    failed = Row(CASE, "crash", {}, details={"error": {"message": message}})
    found = sentence(compare(side_of(run(GOOD).run, Row(CASE, "pass", {})), side_of(run(BAD).run, failed)))
    assert found.startswith("The status is crash instead of pass: ")
    assert found.endswith(end)
    assert not found.endswith(f"{end}.")


@pytest.mark.parametrize("status", ["model_fail_to_load", "missing_dependency", "crash", "not_tonight"])
def test_breaks_of_a_case_that_was_not_compiled_are_unknown(status):
    before = side_of(
        run(GOOD).run, Row(CASE, "pass", {"graph_breaks": 2}, structure={"break_reasons": {BREAK: 2}})
    )
    found = sentence(compare(before, side_of(run(BAD).run, Row(CASE, status, {}))))
    assert found.startswith(f"The status is {status} instead of pass")
    assert "graph break" not in found
    captured = side_of(run(BAD).run, Row(CASE, "pass", {"graph_breaks": 0}))
    assert sentence(compare(before, captured)) == f"2 graph breaks fewer ({BREAK})."


def test_versions_of_torch_and_packages_are_named():
    other = with_worker(run(BAD).run, torch="2.13.0", torch_git_version="b" * 40, packages={"timm": "1.1"})
    new = {**PLAIN, "loaded": {**LIBRARIES, "libtorch_cpu.so": "9" * 16}}
    found = sentence(compare(side(PLAIN), side_of(other, Row(CASE, "pass", {}, structure=new))))
    assert found.startswith(
        "Other packages (torch: 2.15.0 aaaaaaaaaa -> 2.13.0 bbbbbbbbbb and timm: 1.0.31 -> 1.1)"
    )
    assert "the generated code is the same" in found


@pytest.mark.parametrize("tool", ["pip", "perfdash"])
def test_a_package_that_no_build_is_made_of_is_listed_and_not_named_as_the_reason(tool):
    other = with_worker(run(BAD).run, packages={"timm": "1.0.31", tool: "24.1"})
    explanation = compare(side(PLAIN), side_of(other, Row(CASE, "pass", {}, structure=PLAIN)))
    assert "packages" not in sentence(explanation)
    assert f"{tool}: none -> 24.1" in text(explanation)


def test_the_models_own_file_is_named_and_the_host_is_not():
    for metric in (None, "backend_ms", "eager_ms", "compilation_s", "backend_peak_bytes"):
        found = told({**EDITED, "loaded": {**LIBRARIES, "net (Python)": "5" * 16}}, metric=metric)
        assert found.startswith("The model's file net.py was edited"), metric
        assert "host" not in found
    new = {**PLAIN, "model_files": {"net.py": "1" * 16, "layers.py": "3" * 16}}
    assert "The model's file layers.py is new" in told(new)


def test_an_edited_key_of_the_suite_is_named_and_the_host_is_not():
    model = {"loader": "timm", "target": "vit", "config": {"depth": 2}, "inputs": {}, "variant": {}}
    old = {**PLAIN, "model": model}
    new = {
        **PLAIN,
        "model": {**model, "target": "vit_large", "config": {"depth": 9}, "inputs": {"size": [3, 8]}},
    }
    for metric in (None, "backend_ms", "eager_ms"):
        found = told(new, old, metric)
        assert found.startswith(
            "The model has other keys in its suite (config depth: 2 -> 9, inputs size: none -> [3, 8] and "
            "target: vit -> vit_large)"
        ), metric
        assert "host" not in found
    assert "suite" not in told(new), "a record of an older perfdash has none"
    explanation = compare(side(old), side(new))
    assert "Keys of the model in its suite:\n  config depth: 2 -> 9\n" in text(explanation)


@pytest.mark.parametrize("metric", [None, "backend_ms", "eager_ms", "speedup"])
def test_an_edited_step_of_the_suite_is_named_and_neither_build_nor_host(metric):
    model = {"loader": "transformers", "target": "gpt2", "config": {}, "inputs": {}, "variant": {}}
    old = {**PLAIN, "model": {**model, "new_tokens": 32, "cache": "dynamic"}}
    new = {**PLAIN, "model": {**model, "new_tokens": 64, "cache": "dynamic"}}
    found = told(new, old, metric)
    assert found.startswith("The model has other keys in its suite (new_tokens: 32 -> 64)")
    assert "host" not in found
    assert "build" not in found
    assert "suite" not in told(new, {**PLAIN, "model": model}), "a record without the key"


def test_an_option_of_the_run_is_not_a_key_of_the_suite():
    model = {"loader": "timm", "target": "vit", "optimizer": "sgd", "loss": "mean"}
    before = side_of(run(GOOD).run, Row(CASE, "pass", {}, structure={**PLAIN, "model": model}))
    other = run(BAD).run
    other = replace(other, setting={**other.setting, "optimizer": "adam"})
    new = {**PLAIN, "model": {**model, "optimizer": "adam"}}
    found = sentence(compare(before, side_of(other, Row(CASE, "pass", {}, structure=new))))
    assert found.startswith("Run with other options (optimizer: none -> adam)")
    assert "suite" not in found


def test_a_variable_of_the_shell_is_named():
    facts = {**run().run.environment, "variables": {"OMP_WAIT_POLICY": "passive"}}
    found = told(PLAIN, environment=facts)
    assert found.startswith("Other variables (OMP_WAIT_POLICY: none -> passive)")
    assert "host" not in found


def test_operators_of_eager_that_differ_are_named():
    operators = {"aten.addmm.default": 2, "aten.erf.default": 1, "aten.mul.Tensor": 3, "aten.view.default": 9}
    new = {**EDITED, "eager_operators": operators}
    expected = "eager calls other operators (gelu: 1 -> 0, erf: 0 -> 1 and mul.Tensor: 0 -> 3)"
    assert expected in told(new)
    assert expected in told(new, metric="eager_ms")


def test_an_operator_that_the_model_replaces_is_named():
    new = {**EDITED, "registered_operators": ["aten::gelu for CPU"]}
    values = {"eager_ms": 2.0, "eager_ms_low": 1.9, "eager_ms_high": 2.1}
    slower = {"eager_ms": 4.0, "eager_ms_low": 3.9, "eager_ms_high": 4.1}
    for metric in (None, "eager_ms"):
        found = told(new, metric=metric, values=(values, slower))
        assert "Python code implements aten::gelu for CPU" in found
        assert "eager takes 4 ms instead of 2 ms with the same operators" in found


def test_peak_memory_is_named_with_what_is_new():
    new = {
        **EDITED, "kernels": [RELU, kernel("mean relu stack", 1, text="t")], "text": "other",
        "eager_operators": {**OPERATORS, "aten.stack.default": 1},
    }  # fmt: skip
    values = {"backend_peak_bytes": 18.8e6, "eager_peak_bytes": 12e6}
    more = {"backend_peak_bytes": 44.0e6, "eager_peak_bytes": 12e6}
    found = told(new, values=(values, more))
    assert "peak memory: compiled 44 MB instead of 18.8 MB;" in found
    assert "peak memory: compiled 44 MB instead of 18.8 MB and eager 30 MB instead of 12 MB;" in told(
        new, values=(values, {**more, "eager_peak_bytes": 30e6})
    )
    assert "stack" in found
    assert "cpp_fused_mean_relu_stack_1" in found
    of_memory = told(new, metric="backend_peak_bytes", values=(values, more))
    assert "peak memory: compiled 44 MB instead of 18.8 MB" in of_memory


@pytest.mark.parametrize("metric", ["eager_ms", "eager_peak_bytes"])
def test_the_compiled_sides_memory_explains_nothing_of_eager(metric):
    values = {"backend_peak_bytes": 20e6, "eager_peak_bytes": 12e6}
    more = {**values, "backend_peak_bytes": 30e6}
    found = told(PLAIN, metric=metric, values=(values, more))
    assert found == "Eager runs the same files: the cause is the host."
    both = told(PLAIN, metric=metric, values=(values, {**more, "eager_peak_bytes": 24e6}))
    assert both == "Peak memory: eager 24 MB instead of 12 MB."


def test_wrong_outputs_are_named():
    found = told(
        {**EDITED, "text": "other", "kernels": [kernel("relu", 0, text="o")]}, status="fail_accuracy"
    )
    assert "the outputs are wrong (fail_accuracy instead of pass)" in found


def test_other_code_is_said_only_where_the_text_differs():
    settings = {"mode": None, "config": {"cpp.simdlen": 1}}
    same = {**PLAIN, "kernels": [KEYED], "settings": settings, "fingerprint": "x"}
    found = told(same)
    assert "other code" not in found
    assert found == ("Compiled with other settings (cpp.simdlen: none -> 1); the generated code is the same.")
    other = {**same, "kernels": [{**KEYED, "text": "another"}], "text": "also"}
    assert "other code in 1 of 1 kernel with the same operators: cpp_fused_relu_0" in told(other)
    before = side(PLAIN)
    shown = text(compare(before, side(same, BAD)))
    assert "other code" not in shown
    assert "whole *" not in shown


def test_the_compiled_call_is_said_where_only_it_changed():
    values = {"backend_ms": 2.1, "backend_ms_low": 2.0, "backend_ms_high": 2.2}
    slower = {"backend_ms": 11.7, "backend_ms_low": 11.5, "backend_ms_high": 12.0}
    found = told(PLAIN, values=(values, slower), setting={"env": {"ONEDNN_MAX_CPU_ISA": "SSE41"}})
    assert found == (
        "Run with other options (env ONEDNN_MAX_CPU_ISA: none -> SSE41); the generated code is the same, and "
        "the compiled call takes 11.7 ms instead of 2.1 ms."
    )


def test_what_a_configuration_sets_is_named():
    settings = '{"env":{"X":"1"},"inductor_config":{"freezing":true},"tf32":true}'
    other = replace(CASE, settings=settings, configuration="mine")
    for metric in (None, "eager_ms"):
        found = sentence(compare(side(PLAIN), side(PLAIN, BAD, case=other)), metric)
        assert found.startswith("Run with other options (env X: none -> 1 and tf32: none -> True)")
        assert "host" not in found
    # An option of the run that equals what a configuration sets is no difference.
    as_option = side(PLAIN, setting={"env": {"X": "1"}, "tf32": True})
    assert compare(as_option, side(PLAIN, BAD, case=other)).of("option of the run") == []


def test_another_batch_size_is_named():
    other = replace(CASE, batch_size=8)
    found = sentence(compare(side(PLAIN), side(PLAIN, BAD, case=other)))
    assert found.startswith("Run with other options (batch size: 1 -> 8)")


@pytest.mark.parametrize("metric", [None, "backend_ms", "eager_ms"])
def test_a_text_names_nothing_of_the_machine_by_a_path(metric):
    found = told(EDITED, metric=metric)
    assert "/" not in found


HOST = {"host_class": "b" * 12, "microcode": "0x2", "compiler": "g++ 13"}


@pytest.mark.parametrize("metric", [None, "backend_ms", "eager_ms"])
@pytest.mark.parametrize("code", [{}, {"fingerprint": None, "text": None}], ids=["known", "unknown"])
def test_a_package_hides_neither_the_machine_nor_the_compiler(metric, code):
    facts, old = run().run.environment, {**PLAIN, **code}
    before = side(old, environment={**facts, **HOST, "microcode": "0x1", "compiler": "g++ 12"})
    packages = {"timm": "1.0.31", "certifi": "2"}
    other = with_worker(run(BAD, environment={**facts, **HOST}).run, packages=packages)
    found = sentence(compare(before, side_of(other, Row(CASE, "pass", {}, structure=old))), metric)
    assert found.startswith("Other packages (certifi: none -> 2); ")
    assert found.endswith("; other environment (microcode: 0x1 -> 0x2 and compiler: g++ 12 -> g++ 13).")
    assert ("eager runs the same files" if metric == "eager_ms" else "all loaded files are the same") in found


@pytest.mark.parametrize(("host", "changes"), [("a", []), ("b", [("kernel", "6.1", "6.8 (b)")])])
def test_a_change_of_another_machine_of_the_run_is_no_other_environment(host, changes):
    """A cluster, of which machine b has another kernel now."""
    facts = {name: value for name, value in run().run.environment.items() if name != "kernel"}
    row = Row(CASE, "pass", {}, structure=PLAIN, details={"conditions": {"host": host}})
    sides = []
    for of_b in ("6.1", "6.8"):
        by_host = {"a": {"kernel": "6.1"}, "b": {"kernel": of_b}}
        sides.append(side_of(run(BAD, environment={**facts, "by_host": by_host}).run, row))
    found = compare(*sides).of(ENVIRONMENT)
    assert [(item.what, item.before, item.after) for item in found] == changes


@pytest.mark.parametrize("metric", [None, "backend_ms", "eager_ms"])
def test_a_package_hides_no_other_loaded_file(metric):
    """The files of the packages that are named go without saying."""
    changed = ["libgomp.so.1", "libtorch_cpu.so", "libc10.so", "torch (Python)", "typing_extensions (Python)"]
    other = with_worker(run(BAD).run, torch="2.16.0", packages={"timm": "1.0.31", "typing-extensions": "4.9"})
    new = {**PLAIN, "loaded": {**LIBRARIES, **dict.fromkeys(changed, "9" * 16)}}
    found = sentence(compare(side(PLAIN), side_of(other, Row(CASE, "pass", {}, structure=new))), metric)
    assert found.startswith("Other packages (torch: ")
    assert found.endswith("; loaded files differ: libgomp.so.1.")


def test_the_latency_of_eager_alone_is_no_cause():
    values = {"eager_ms": 2.0, "eager_ms_low": 1.9, "eager_ms_high": 2.1}
    slower = {"eager_ms": 4.0, "eager_ms_low": 3.9, "eager_ms_high": 4.1}
    facts = {**run().run.environment, "compiler": "g++ 13"}
    found = told(PLAIN, metric="eager_ms", values=(values, slower), environment=facts)
    assert found == (
        "Eager takes 4 ms instead of 2 ms with the same operators; eager runs the same files: the cause is "
        "the host (compiler: none -> g++ 13)."
    )


def called(*numbers, source=""):
    """Kernels that are called so often: in the wrapper, not in the kernels, is what differs."""
    kernels = [kernel("relu", number, source, calls=calls) for number, calls in enumerate(numbers)]
    return structure(*kernels, kernel_calls=sum(numbers), fingerprint=str(numbers))


@pytest.mark.parametrize(("old", "new", "words"), [
    (called(4), called(12), "cpp_fused_relu_0 is called 12 times instead of 4."),
    (called(4, 4), called(5, 1), "cpp_fused_relu_1 is called 1 time instead of 4, and 1 more kernel more or"),
    (called(4), called(12, source="b"), "cpp_fused_relu_0 is called 12 times instead of 4; other code in 1"),
    (called(4, 2), called(2, 4), "The kernels are the same, and only the order or the wrapper around them"),
])  # fmt: skip
def test_a_kernel_that_is_called_more_often_is_named(old, new, words):
    assert told(new, old=old).startswith(words)


def test_calls_of_a_kernel_that_a_record_does_not_have_are_not_compared():
    new = called(3)
    del new["kernels"][0]["calls"]
    assert "called" not in told(new, old=called(4))


def test_cuda_graphs_that_inductor_skips_are_named():
    """Without CUDA graphs the same kernels are launched one by one."""
    old, new = {**PLAIN, "cudagraph_skips": 0}, {**PLAIN, "cudagraph_skips": 2}
    assert told(new, old=old) == "Inductor skips CUDA graphs 2 times instead of 0."
    assert told(old, old=new) == "Inductor skips CUDA graphs 0 times instead of 2."
    assert "CUDA" not in told(new), "an older history does not have the number"
    assert "Skipped CUDA graphs:\n  cudagraph_skips: 0 -> 2" in text(compare(side(old), side(new, BAD)))
    measured = good("vit_tiny", 1.2, "faster")
    measured.structure, measured.capture = dict(PLAIN), {"cudagraph_skips": 2}
    assert from_result(measured).structure["cudagraph_skips"] == 2
