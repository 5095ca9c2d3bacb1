"""An explanation as one sentence: what was changed between two runs, and what came of it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from perfdash.detect.environment_changes import NOT_OF_A_BUILD
from perfdash.explain.structure_comparison import (
    BREAK,
    EAGER_OPERATOR,
    ENVIRONMENT,
    FAILED_GUARD,
    FALLBACK,
    GIVEN_UP,
    GRAPHS,
    GUARDS,
    LATENCY,
    LIBRARY_CALL,
    LOADED,
    MEMORY,
    MODEL_FILE,
    MODEL_KEY,
    PACKAGE,
    PHASE,
    RECOMPILE,
    REGISTERED,
    RUN_OPTION,
    SETTING,
    SKIPPED_GRAPHS,
    STATUS,
    VARIABLE,
    Difference,
    ExplainedSide,
    Explanation,
    KernelChange,
    more_graph_breaks,
    without_line,
)
from perfdash.metrics import METRICS

_MOST_NAMED = 3  # kernels, calls or files that a sentence names
_MOST_EFFECTS = 4  # clauses on what came of a change
_REASON_CHARS = 160

_OWN = "perfdash (Python)"
_OUTSIDE = "outside the generated code (guards, ATen, oneDNN, allocator)"

# How the names of a package's loaded files start; those of other packages start with the package's name.
_FILES_OF = {
    "torch": ("torch (", "torchgen (", "functorch (", "libtorch", "libc10", "libshm", "_C."),
    "python": ("python", "libpython", "standard library of Python"),
}

# Operators of eager that only describe memory anew.
_VIEWS = frozenset(
    [
        "alias",
        "as_strided",
        "detach",
        "expand",
        "lift_fresh",
        "permute",
        "reshape",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "t",
        "transpose",
        "unbind",
        "unsqueeze",
        "view",
        "_unsafe_view",
        "_reshape_alias",
    ]
)


def sentence(explanation: Explanation, metric: str | None = None, rest: str = "the host") -> str:
    """What was changed, and what came of it, in one sentence. `metric`: that of the alert, if any.

    `rest`: the cause where the records show no difference.
    """
    described = METRICS.get(metric) if metric else None
    of_eager = described is not None and described.of_eager
    changed = _changed_clauses(explanation, of_eager)
    if of_eager:
        effects = _eager_clauses(explanation, bool(changed), rest)
    else:
        effects = _effect_clauses(explanation)
        if described is not None and described.kind == "time":
            effects = [*_phase_clauses(explanation), *effects]
    effects = effects[:_MOST_EFFECTS]
    if not effects and not of_eager:
        effects = [_no_effect(explanation, rest) if changed else _nothing(explanation, rest)]
    return _sentence([*changed, *filter(None, effects)])


def _sentence(clauses: Sequence[str]) -> str:
    text = "; ".join(clauses)
    first = text.partition(" ")[0]
    end = "" if text.endswith(".") else "."  # a reason may have its own
    return f"{text[:1].upper() if first.isalpha() else text[:1]}{text[1:]}{end}"


def _changed_clauses(explanation: Explanation, of_eager: bool) -> list[str]:
    """What somebody changed: packages, settings, options, variables, the model: its suite, its own files."""
    of = explanation.of
    return [
        *_named_changes("other packages", _packages(explanation)),
        *([] if of_eager else _named_changes("compiled with other settings", of(SETTING))),
        *_named_changes("run with other options", of(RUN_OPTION)),
        *_named_changes("other variables", of(VARIABLE)),
        *_named_changes("the model has other keys in its suite", of(MODEL_KEY)),
        *_model_clauses(of(MODEL_FILE)),
        *_registered_clauses(of(REGISTERED)),
    ]


def _packages(explanation: Explanation) -> list[Difference]:
    return [item for item in explanation.of(PACKAGE) if item.what not in NOT_OF_A_BUILD]


def _named_changes(words: str, findings: Sequence[Difference]) -> list[str]:
    return [f"{words} ({_named([change_words(item) for item in findings])})"] if findings else []


def _model_clauses(findings: Sequence[Difference]) -> list[str]:
    clauses = []
    for verb, files in (
        ("edited", [item.what for item in findings if item.before and item.after]),
        ("new", [item.what for item in findings if not item.before]),
        ("gone", [item.what for item in findings if not item.after]),
    ):
        if files:
            noun, form = ("file", "is") if len(files) == 1 else ("files", "are")
            state = f"{'was' if len(files) == 1 else 'were'} edited" if verb == "edited" else f"{form} {verb}"
            clauses.append(f"the model's {noun} {_named(files)} {state}")
    return clauses


def _registered_clauses(findings: Sequence[Difference]) -> list[str]:
    new, gone = ([item.what for item in findings if bool(item.after) is here] for here in (True, False))
    clauses = [f"Python code implements {_named(new)}"] if new else []
    return clauses + ([f"Python code no longer implements {_named(gone)}"] if gone else [])


def _effect_clauses(explanation: Explanation) -> list[str]:
    """The differences in the compiled code, the most telling first."""
    clauses = [
        *_status_clauses(explanation),
        *_recompile_clauses(explanation),
        *_break_clauses(explanation),
        *_fallback_clauses(explanation.of(FALLBACK)),
        *_skip_clauses(explanation.of(SKIPPED_GRAPHS)),
        *_memory_clauses(explanation.of(MEMORY)),
        *_operator_clauses(explanation),
        *_kernel_clauses(explanation),
        *_call_clauses(explanation.of(LIBRARY_CALL)),
        *code_clauses(explanation),
    ]
    guards = explanation.of(GUARDS)
    if guards and not clauses:
        clauses += [f"the same kernels, with {guards[0].after} guards instead of {guards[0].before}"]
    return clauses


def _status_clauses(explanation: Explanation) -> list[str]:
    """The change of the status, with the reason of the newer one."""
    reason = _reason(explanation.after.reason)
    because = f": {reason}" if reason else ""
    return [
        f"the outputs are wrong ({item.after} instead of {item.before}){because}"
        if item.after == "fail_accuracy"
        else f"the status is {item.after} instead of {item.before}{because}"
        for item in explanation.of(STATUS)
    ]


def _memory_clauses(findings: Sequence[Difference]) -> list[str]:
    peaks = [
        f"{item.what} {_megabytes(item.after)} instead of {_megabytes(item.before)}" for item in findings
    ]
    return [f"peak memory: {_and(peaks)}"] if peaks else []


def _megabytes(size: float) -> str:
    """Three significant digits, and all digits before the point."""
    return f"{size / 1e6:.0f} MB" if size >= 999.5e6 else f"{size / 1e6:.3g} MB"


def _operator_clauses(explanation: Explanation) -> list[str]:
    """Operators of eager that are gone, new, or called more or less often; those that compute first."""
    found = [item for item in explanation.of(EAGER_OPERATOR) if _operator(item.what) not in _VIEWS]
    if not found:
        return []
    found.sort(key=lambda item: (item.after > 0, item.before > 0))
    return [f"eager calls other operators ({_named([change_words(item, _operator) for item in found])})"]


def _operator(name: str) -> str:
    """gelu of aten.gelu.default, mul.Tensor of aten.mul.Tensor."""
    return name.removeprefix("aten.").removesuffix(".default")


def _eager_latency_clauses(explanation: Explanation) -> list[str]:
    """That eager's time changed while it calls the same operators: one of these is another."""
    known = all(side.structure.get("eager_operators") for side in (explanation.before, explanation.after))
    if not known or explanation.of(EAGER_OPERATOR):
        return []
    return [
        f"eager takes {item.after:.4g} ms instead of {item.before:.4g} ms with the same operators"
        for item in explanation.of(LATENCY)
        if item.what == "eager"
    ]


def _no_effect(explanation: Explanation, rest: str) -> str:
    """What is known of code, files and machine where a change is named; empty if nothing is."""
    if explanation.same_code is False:
        return _nothing(explanation, rest)
    same = ["the generated code"] if explanation.same_code else []
    if explanation.same_files and _packages(explanation):
        same.append("all loaded files")
    latencies = [item for item in explanation.of(LATENCY) if item.what == "compiled" and same]
    times = "".join(
        f", and the compiled call takes {item.after:.4g} ms instead of {item.before:.4g} ms"
        for item in latencies
    )
    verb = "is" if same == ["the generated code"] else "are"
    clauses = [f"{_and(same)} {verb} the same{times}"] if same else []
    clauses += _eager_latency_clauses(explanation) if same else []
    return "; ".join([*clauses, *_beside_clauses(explanation)])


def _beside_clauses(explanation: Explanation) -> list[str]:
    """What differs beside a change that is named: of packages, one may change every night without effect."""
    files = _other_files(explanation)
    return [
        *([f"loaded files differ: {_named(files)}"] if files else []),
        *_named_changes("other environment", explanation.of(ENVIRONMENT)),
    ]


def _other_files(explanation: Explanation) -> list[str]:
    """The loaded files that differ and whose name is not that of a package or model file that changed."""
    changed = [item.what.replace("-", "_") for item in _packages(explanation)]
    changed += [item.what.rpartition("/")[2].removesuffix(".py") for item in explanation.of(MODEL_FILE)]
    starts = tuple(start for name in changed for start in _FILES_OF.get(name, (f"{name} (",)))
    return [item.what for item in explanation.of(LOADED) if not item.what.startswith(starts)]


def _break_clauses(explanation: Explanation) -> list[str]:
    """How many graph breaks more or fewer, and one reason of those that are; or another reason of as many."""
    breaks = explanation.of(BREAK)
    more = [item for item in breaks if item.after > item.before]
    fewer = [item for item in breaks if item.after < item.before]
    number = more_graph_breaks(explanation.before, explanation.after)
    graphs = explanation.of(GRAPHS)
    within = f", so {_count(graphs[0].after, 'graph')} instead of {graphs[0].before}" if graphs else ""
    clauses = []
    if number > 0:
        clauses.append(f"{_count(number, 'more graph break')}{within}{_one_break(explanation, more)}")
    elif number < 0:
        clauses.append(f"{_count(-number, 'graph break')} fewer{within}{_one_break(explanation, fewer)}")
    elif more:
        clauses.append(f"the graph breaks for another reason ({_break(explanation, more[0])}){within}")
    elif graphs:
        clauses.append(f"{_count(graphs[0].after, 'graph')} instead of {graphs[0].before}")
    if given_up := [item for item in explanation.of(GIVEN_UP) if item.after > item.before]:
        clauses.append(f"dynamo gave up a frame ({_reason(given_up[0].what)})")
    return clauses


def _one_break(explanation: Explanation, breaks: Sequence[Difference]) -> str:
    return f" ({_break(explanation, breaks[0])})" if breaks else ""


def _break(explanation: Explanation, item: Difference) -> str:
    """Why the graph breaks, and where in the user's code; a place that both sides have is no new one."""
    sides = [explanation.after, explanation.before]
    known, other = (
        _break_places(side, item.what) for side in (sides if item.after > item.before else reversed(sides))
    )
    places = [place for place in known if place not in other] or known
    return (
        f"{_named([_reason(place) for place in places])}: {_reason(item.what)}"
        if places
        else _reason(item.what)
    )


def _break_places(side: ExplainedSide, reason: str) -> list[str]:
    """The places in the user's code where the graph breaks for a reason without its line."""
    by_reason = side.structure.get("break_places") or {}
    return [place for name in by_reason if without_line(name) == reason for place in by_reason[name]]


def _fallback_clauses(findings: Sequence[Difference]) -> list[str]:
    lost = [item.what for item in findings if not item.before]
    regained = [item.what for item in findings if not item.after]
    clauses = []
    if lost:
        verb = "runs" if len(lost) == 1 else "run"
        clauses.append(f"{_named(lost)} now {verb} in ATen, without a kernel of inductor")
    if regained:
        clauses.append(f"{_named(regained)} no longer fall{'s' if len(regained) == 1 else ''} back to ATen")
    return clauses


def _skip_clauses(findings: Sequence[Difference]) -> list[str]:
    return [
        f"inductor skips CUDA graphs {_count(item.after, 'time')} instead of {item.before}"
        for item in findings
    ]


def _kernel_clauses(explanation: Explanation) -> list[str]:
    """The number of kernels, and what became of the operators in the first that differ."""
    old, new = explanation.before.kernels, explanation.after.kernels
    if old is None or new is None:
        return _count_clause(explanation)
    number = f"{_count(len(new), 'kernel')} instead of {len(old)}" if len(old) != len(new) else ""
    reasons = [
        *_each(explanation.kernels_of("split"), _split_words),
        *_each(explanation.kernels_of("merged"), _merged_words),
        *_each(explanation.kernels_of("regrouped"), _regrouped_words),
        *_gone_and_new(explanation),
        *_times_clauses(explanation),
    ]
    if not reasons:
        return [number] if number else []
    return [f"{number}: {reasons[0]}" if number else reasons[0], *reasons[1:]]


def _count_clause(explanation: Explanation) -> list[str]:
    """The counts alone, of a side whose kernels are not stored."""
    counts = []
    for side in (explanation.before, explanation.after):
        kernels = side.kernels
        counts.append(side.structure.get("kernels") if kernels is None else len(kernels))
    if None in counts or counts[0] == counts[1]:
        return []
    return [f"{_count(int(counts[1] or 0), 'kernel')} instead of {counts[0]}"]


def _each(changes: Sequence[KernelChange], words: Callable[[KernelChange], str]) -> list[str]:
    if not changes:
        return []
    more = len(changes) - 1
    also = f", and {more} more like it" if more else ""
    return [f"{words(changes[0])}{also}"]


def _operators(kernels: Iterable[Mapping[str, Any]]) -> list[str]:
    """Their operators, each once, in the order of the kernels."""
    return list(dict.fromkeys(name for kernel in kernels for name in kernel.get("operators") or ()))


def _split_words(change: KernelChange) -> str:
    groups = [" + ".join(_operators([kernel])) for kernel in change.after]
    if len(groups) <= _MOST_NAMED:
        return f"{change.before[0]['name']} is split into {_and(groups)}"
    return f"{change.before[0]['name']} is split into {len(groups)} kernels"


def _merged_words(change: KernelChange) -> str:
    groups = [" + ".join(_operators([kernel])) for kernel in change.before]
    if len(groups) <= _MOST_NAMED:
        return f"{_and(groups)} are merged into {change.after[0]['name']}"
    return f"{len(groups)} kernels are merged into {change.after[0]['name']}"


def _regrouped_words(change: KernelChange) -> str:
    old, new = set(_operators(change.before)), set(_operators(change.after))
    lost, gained = sorted(old - new), sorted(new - old)
    name = change.after[0]["name"]
    parts = [f"{name} no longer contains {_named(lost)}"] if lost else []
    parts += [f"{'' if lost else name + ' '}now contains {_named(gained)}"] if gained else []
    return " and ".join(parts)


def _gone_and_new(explanation: Explanation) -> list[str]:
    words = []
    for how, verb in (("new", "new"), ("gone", "gone")):
        kernels = [
            *(kernel for change in explanation.kernels_of(how) for kernel in change.before + change.after)
        ]
        if kernels:
            names = _named([str(kernel["name"]) for kernel in kernels])
            words.append(f"{verb}: {names}")
    return words


def _times_clauses(explanation: Explanation) -> list[str]:
    """The kernel of both sides whose number of calls changed most, and how many more there are."""
    pairs = [
        (change.before[0], change.after[0])
        for change in (*explanation.kernels_of("same"), *explanation.kernels_of("changed"))
        if None not in (change.before[0].get("calls"), change.after[0].get("calls"))
    ]
    totals: Counter[str] = Counter()
    for old, new in pairs:
        totals[" ".join(_operators([new]))] += new["calls"] - old["calls"]
    # Kernels that are alike may be in another order, each with its calls.
    found = [
        (old, new)
        for old, new in pairs
        if old["calls"] != new["calls"] and totals[" ".join(_operators([new]))]
    ]
    if not found:
        return []
    old, new = max(found, key=lambda pair: abs(pair[1]["calls"] - pair[0]["calls"]))
    more = f", and {_count(len(found) - 1, 'more kernel')} more or less often" if len(found) > 1 else ""
    return [f"{new['name']} is called {_count(new['calls'], 'time')} instead of {old['calls']}{more}"]


def _call_clauses(findings: Sequence[Difference]) -> list[str]:
    """Library calls that are more, fewer or replaced."""
    gone = [item for item in findings if not item.after]
    new = [item for item in findings if not item.before]
    if len(gone) == len(new) == 1:
        numbers = f" ({new[0].after} calls)" if new[0].after > 1 else ""
        return [f"{_short(new[0].what)} is called instead of {_short(gone[0].what)}{numbers}"]
    if not findings:
        return []
    return [f"library calls: {_named([change_words(item, _short) for item in findings])}"]


def _recompile_clauses(explanation: Explanation) -> list[str]:
    recompiles = explanation.of(RECOMPILE)
    if not recompiles:
        return []
    item = recompiles[0]
    failed = [guard for guard in explanation.of(FAILED_GUARD) if guard.after > guard.before]
    guards = ""
    if failed:
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        guards = f": the guard {_reason(failed[0].what)} fails{more}"
    return [f"{_count(int(item.after), 'recompile')} instead of {int(item.before)}{guards}"]


def code_clauses(explanation: Explanation) -> list[str]:
    changed = explanation.kernels_of("changed")
    # Without texts a fingerprint differs for equal code, too, where the settings differ.
    if not changed or (explanation.of(SETTING) and explanation.same_code is None):
        return []
    kernels = explanation.after.kernels or []
    names = _named([str(change.after[0]["name"]) for change in changed])
    return [
        f"other code in {len(changed)} of {_count(len(kernels), 'kernel')} with the same operators: {names}"
    ]


def _phase_clauses(explanation: Explanation) -> list[str]:
    phases = sorted(explanation.of(PHASE), key=lambda item: -abs(item.after - item.before))
    return [
        f"{_phase(item.what)} takes {item.after:.1f} s instead of {item.before:.1f} s" for item in phases[:2]
    ]


def _phase(name: str) -> str:
    return {"compiler": "the C++ or Triton compiler", "rest": "the rest of compiling"}.get(
        name, name.replace("_", " ")
    )


def _eager_clauses(explanation: Explanation, is_explained: bool, rest: str) -> list[str]:
    """Of eager's latency or memory: generated code has no part in it. `is_explained`: a change is named."""
    operators, latency = _operator_clauses(explanation), _eager_latency_clauses(explanation)
    memory = _memory_clauses([item for item in explanation.of(MEMORY) if item.what == "eager"])
    if operators or memory:
        return [*operators, *latency, *memory]
    if is_explained:
        same = explanation.same_files and _packages(explanation)
        return [*latency, *(["eager runs the same files"] if same else []), *_beside_clauses(explanation)]
    return [*latency, _eager_nothing(explanation, rest)]


def _eager_nothing(explanation: Explanation, rest: str) -> str:
    """The clause on eager where no change is known."""
    if explanation.same_files:
        return f"eager runs the same files: {_rest(explanation, rest)}"
    if loaded := explanation.of(LOADED):
        return f"eager runs no generated code, and loaded files differ: {_named([i.what for i in loaded])}"
    facts = explanation.of(ENVIRONMENT)
    changed = f"; environment: {_named([item.what for item in facts])}" if facts else ""
    return f"eager runs no generated code, and the contents of loaded files are not known{changed}"


def _nothing(explanation: Explanation, rest: str) -> str:
    """The sentence where no difference in the structure is known."""
    if explanation.same_code is None:
        missing = [side.run.name for side in (explanation.before, explanation.after) if not _says(side)]
        if missing:
            return f"nothing is known of the generated code of {_and(missing)}"
        return "the counts are the same, and whether the generated code is the same is not known"
    if not explanation.same_code and None in (explanation.before.kernels, explanation.after.kernels):
        return "the generated code differs, and it is not known in what"
    if not explanation.same_code:
        return "the kernels are the same, and only the order or the wrapper around them differs"
    if explanation.same_files:
        return f"the generated code and all loaded files are the same: {_rest(explanation, rest)}"
    if loaded := explanation.of(LOADED):
        if [item.what for item in loaded] == [_OWN]:
            return (
                "the generated code and all loaded files but perfdash's own are the same: the cause is "
                f"{rest}, or how another perfdash measures"
            )
        files = _named([item.what for item in loaded])
        return f"the generated code is the same and {files} differ{'s' if len(loaded) == 1 else ''}: " + (
            f"the cause lies {_OUTSIDE}, or is {rest}"
        )
    return (
        f"the generated code is the same, and the contents of loaded files are not known: the cause lies "
        f"{_OUTSIDE}, or is {rest}"
    )


def _rest(explanation: Explanation, rest: str) -> str:
    changed = [change_words(item) for item in explanation.of(ENVIRONMENT)]
    return f"the cause is {rest}{f' ({_named(changed)})' if changed else ''}"


def _says(side: ExplainedSide) -> bool:
    return side.structure.get("fingerprint") is not None


def change_words(item: Difference, name: Callable[[str], str] = str) -> str:
    def shown(value: Any) -> str:
        if value is None:
            return "none"
        return f"{value:.2f}" if isinstance(value, float) else str(value)

    return f"{_reason(name(item.what))}: {_reason(shown(item.before))} -> {_reason(shown(item.after))}"


def _short(call: str) -> str:
    """A library call without the words that all of them start with."""
    return call.removeprefix("extern_kernels.").removeprefix("torch.ops.")


def _reason(text: str) -> str:
    """The first line of a reason, cut to a readable length."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    line = lines[0] if lines else ""
    return line if len(line) <= _REASON_CHARS else f"{line[: _REASON_CHARS - 3]}..."


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _and(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _named(words: Sequence[str]) -> str:
    """The first words, and how many more there are."""
    more = len(words) - _MOST_NAMED
    return _and([*words[:_MOST_NAMED], f"{more} more"]) if more > 0 else _and(list(words))
