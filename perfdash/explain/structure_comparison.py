"""Compare what compiling produced in two runs of a case. Pure.

Two sides in, findings out, the ones that most often explain a change of latency first. A kernel is the same
where its fingerprint is; others are matched by their fused operators: changed, split, merged, new or gone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfdash.detect.environment_changes import machine_changes, package_changes
from perfdash.history.failures import reason
from perfdash.history.result_hosts import of_row
from perfdash.history.results import Row, RunRow
from perfdash.methods import changes as method_changes
from perfdash.methods import has_own_threads
from perfdash.metrics import is_sampled
from perfdash.records import DISTURBED, Case

_BRANCH_LINE = re.compile(r"^(a branch that depends on data in .*):\d+(?= \()")  # see worker.compilation
_GUARD_ADDRESS = re.compile(r"(_check_(?:type|obj)_id\(.*?), \d+")  # of an object: another in each process
_GUARD_LINE = re.compile(r":\d+(?= in \S+\)$)")  # an edit above a branch moves it
_MOST_PARTS = 8  # kernels that one kernel is split into, or merged from
_LEAST_PHASE = 0.1  # change of a phase relative to the whole compilation, from which it is a finding
_LEAST_PHASE_S = 0.5


@dataclass(frozen=True)
class ExplainedSide:
    """One case of one run. structure: as in records.Result, with fallbacks and reasons of graph breaks."""

    run: RunRow
    case: Case
    status: str
    structure: Mapping[str, Any]
    values: Mapping[str, float]
    phases_s: Mapping[str, float]
    code: Mapping[str, bytes] = field(default_factory=dict)  # generated, as in history.results.Row
    reason: str = ""  # why it failed or was skipped
    verdict: str | None = None  # on its speedup, as in records.Result
    host: str | None = None  # that measured the case, where it is recorded

    @property
    def kernels(self) -> list[Mapping[str, Any]] | None:
        """The generated kernels in order; None where only their number is known, or not even that."""
        kernels = self.structure.get("kernels")
        return list(kernels) if isinstance(kernels, list) else None


def side_of(run: RunRow, row: Row) -> ExplainedSide:
    """A side from a run, of a folder or of the history."""
    details = row.details
    # Details without reasons: no breaks, if the case was captured at all.
    reasons = details.get("break_reasons") or ({} if "graph_breaks" in row.values else None)
    counts = {**details.get("structure", {}), "break_reasons": reasons}
    structure = {**counts, **row.structure}
    phases = details.get("compile_phases_s") or {}
    return ExplainedSide(
        run, row.case, row.status, structure, row.values, phases, row.code, reason(row), row.verdict,
        of_row(row),
    )  # fmt: skip


@dataclass(frozen=True)
class KernelChange:
    """Kernels of both sides that belong together. how: same, changed, split, merged, regrouped, new, gone."""

    how: str
    before: tuple[Mapping[str, Any], ...] = ()
    after: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Difference:
    """One difference. about: which part (ABOUT); what: its name; before and after: None where absent."""

    about: str
    what: str
    before: Any = None
    after: Any = None


# The parts in the order in which findings are shown. The first ones are what people change, the others what
# comes of it.
PACKAGE, VARIABLE, SETTING, RUN_OPTION = "package", "variable", "setting", "option of the run"
MODEL_KEY, MODEL_FILE, REGISTERED = "key of the model", "model file", "registered operator"
STATUS, BREAK, GRAPHS, FALLBACK = "status", "graph break", "graphs", "fallback"
RECOMPILE, FAILED_GUARD, GIVEN_UP = "recompiles", "failed guard", "frames given up"
MEMORY, LATENCY, EAGER_OPERATOR = "peak memory", "latency", "eager operator"
LIBRARY_CALL, GUARDS, OPERATORS = "library call", "guards", "graph operators"
SKIPPED_GRAPHS = "skipped CUDA graphs"
LOADED, ENVIRONMENT, PHASE = "loaded file", "environment", "compile phase"
ABOUT = (
    PACKAGE, VARIABLE, SETTING, RUN_OPTION, MODEL_KEY, MODEL_FILE, REGISTERED, STATUS, BREAK, GRAPHS,
    FALLBACK, RECOMPILE, FAILED_GUARD, GIVEN_UP, SKIPPED_GRAPHS, MEMORY, LATENCY, EAGER_OPERATOR,
    LIBRARY_CALL, GUARDS, OPERATORS, LOADED, ENVIRONMENT, PHASE,
)  # fmt: skip
# Parts that compare measured numbers, each with a column of the same method.
_MEASURED = {
    BREAK: "graph_breaks", GRAPHS: "graphs", FALLBACK: "fallbacks", RECOMPILE: "recompiles",
    FAILED_GUARD: "recompiles", MEMORY: "backend_peak_bytes", LATENCY: "backend_ms", PHASE: "compilation_s",
}  # fmt: skip
_OF_COMPILING = ("compile_mode", "inductor_config")  # the structure has these among its own settings
_LEAST_MEMORY, _LEAST_MEMORY_BYTES = 0.03, 1 << 20  # from which a change of a peak is a finding
_LEAST_LATENCY = 0.1  # the same, of a latency whose intervals do not overlap


@dataclass(frozen=True)
class Explanation:
    """All differences between two sides.

    same_code: whether the generated code is the same; None where a side does not say. same_files: whether
    all loaded modules and libraries have the same content; None where a side does not say.
    """

    before: ExplainedSide
    after: ExplainedSide
    kernels: tuple[KernelChange, ...] = ()
    findings: tuple[Difference, ...] = ()
    same_code: bool | None = None
    same_files: bool | None = None
    unknown: tuple[str, ...] = field(default=())  # what a side does not say or was not compared, in words
    note: str = ""  # on the choice of the sides

    def of(self, about: str) -> list[Difference]:
        """The findings of one part."""
        return [finding for finding in self.findings if finding.about == about]

    def kernels_of(self, how: str) -> list[KernelChange]:
        """The kernels that changed in one way."""
        return [change for change in self.kernels if change.how == how]


def compare(before: ExplainedSide, after: ExplainedSide) -> Explanation:
    """What differs between two sides of one case."""
    old, new = before.structure, after.structure
    unknown = []
    kernels: list[KernelChange] = []
    if before.kernels is None or after.kernels is None:
        missing = [side.run.name for side in (before, after) if side.kernels is None]
        unknown.append(f"kernels of {' and '.join(missing)}")
    else:
        kernels = match_kernels(before.kernels, after.kernels)
    settings = _settings(old, new)
    run_options = _run_options(before, after)
    same_files = _same(old.get("loaded"), new.get("loaded"))
    if same_files is None:
        unknown.append("contents of the loaded files")
    findings = [
        *_packages(before.run, after.run),
        *settings,
        *run_options,
        *_model_keys(old.get("model"), new.get("model"), {option.what for option in run_options}),
        *_contents(MODEL_FILE, old.get("model_files"), new.get("model_files")),
        *_registered(old.get("registered_operators"), new.get("registered_operators")),
        *_statuses(before.status, after.status),
        *_differences(FALLBACK, old.get("fallbacks"), new.get("fallbacks")),
        *_breaks(before, after),
        *_number(GRAPHS, "graphs", before, after),
        *_number(RECOMPILE, "recompiles", before, after),
        *_failed_guards(old.get("failed_guards"), new.get("failed_guards")),
        *_differences(GIVEN_UP, _given_up(old), _given_up(new)),
        *_number(SKIPPED_GRAPHS, "cudagraph_skips", before, after),
        *_memory(before.values, after.values),
        *_latencies(before.values, after.values),
        *_differences(EAGER_OPERATOR, old.get("eager_operators"), new.get("eager_operators")),
        *_differences(LIBRARY_CALL, old.get("library_calls"), new.get("library_calls")),
        *_number(GUARDS, "guards", before, after),
        *_number(OPERATORS, "graph_operators", before, after),
        *_contents(LOADED, old.get("loaded"), new.get("loaded")),
        *_environment(before, after),
        *_phases(before.phases_s, after.phases_s),
    ]
    left_out = _not_compared(before, after)
    differing = {finding.about for finding in findings}
    for why in dict.fromkeys(left_out.values()):
        parts = [about for about in left_out if left_out[about] == why and about in differing]
        unknown += [f"change of {', '.join(parts)} ({why})"] if parts else []
    findings = [finding for finding in findings if finding.about not in left_out]
    same_code = _same_code(old, new, bool(settings))
    return Explanation(before, after, tuple(kernels), tuple(findings), same_code, same_files, tuple(unknown))


def _not_compared(before: ExplainedSide, after: ExplainedSide) -> dict[str, str]:
    """Why numbers of the two sides are not compared, by part: another method, or disturbed samples."""
    disturbed = [side.run.name for side in (before, after) if side.verdict == DISTURBED]
    has_own = has_own_threads(after.case)
    reasons = {}
    for about, column in _MEASURED.items():
        if changed := method_changes(before.run.method, after.run.method, column, has_own):
            reasons[about] = f"method: {', '.join(changed)}"
        elif disturbed and is_sampled(column):
            reasons[about] = f"disturbed: {', '.join(disturbed)}"
    return reasons


def match_kernels(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> list[KernelChange]:
    """Match the kernels of two sides: each is in exactly one change."""
    # A fingerprint holds the settings, the text does not; old records have no text.
    key = "text" if all(kernel.get("text") for kernel in (*before, *after)) else "fingerprint"
    changes, old, new = _pairs("same", before, after, lambda kernel: kernel[key])
    changed, old, new = _pairs("changed", old, new, lambda kernel: (kernel["kind"], *_operators(kernel)))
    merged, new, old = _parts(new, old)
    split, old, new = _parts(old, new)
    regrouped, old, new = _overlapping(old, new)
    return [
        *changes,
        *changed,
        *(KernelChange("split", (whole,), parts) for whole, parts in split),
        *(KernelChange("merged", parts, (whole,)) for whole, parts in merged),
        *regrouped,
        *(KernelChange("gone", before=(kernel,)) for kernel in old),
        *(KernelChange("new", after=(kernel,)) for kernel in new),
    ]


Kernels = list[Mapping[str, Any]]


def _operators(kernel: Mapping[str, Any]) -> list[str]:
    return sorted(kernel.get("operators") or [])


def _pairs(
    how: str, before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]], key: Any
) -> tuple[list[KernelChange], Kernels, Kernels]:
    """Pair kernels of one key in their order; returns the pairs and what is left of both sides."""
    waiting: dict[Any, Kernels] = {}
    for kernel in after:
        waiting.setdefault(key(kernel), []).append(kernel)
    pairs, left = [], []
    for kernel in before:
        if partners := waiting.get(key(kernel)):
            pairs.append(KernelChange(how, (kernel,), (partners.pop(0),)))
        else:
            left.append(kernel)
    used = {id(change.after[0]) for change in pairs}
    return pairs, left, [kernel for kernel in after if id(kernel) not in used]


def _parts(
    wholes: Kernels, parts: Kernels
) -> tuple[list[tuple[Mapping[str, Any], tuple[Mapping[str, Any], ...]]], Kernels, Kernels]:
    """Find wholes whose operators are those of several neighbouring parts together."""
    found, left = [], []
    for whole in wholes:
        wanted = set(_operators(whole))
        run = _run_of(wanted, parts) if len(wanted) > 1 else None
        if run is None:
            left.append(whole)
            continue
        start, end = run
        found.append((whole, tuple(parts[start:end])))
        parts = parts[:start] + parts[end:]
    return found, left, parts


def _run_of(wanted: set[str], kernels: Kernels) -> tuple[int, int] | None:
    """The first run of at least two neighbours that have exactly the wanted operators together."""
    for start in range(len(kernels)):
        together: set[str] = set()
        for end in range(start, min(start + _MOST_PARTS, len(kernels))):
            together |= set(_operators(kernels[end]))
            if not together <= wanted:
                break
            if together == wanted and end > start:
                return start, end + 1
    return None


def _overlapping(old: Kernels, new: Kernels) -> tuple[list[KernelChange], Kernels, Kernels]:
    """Pair kernels that share at least half of their operators."""
    pairs, left, rest = [], [], list(new)
    for kernel in old:
        own = set(_operators(kernel))
        best, partner = 0.5, None
        for other in rest:
            theirs = set(_operators(other))
            shared = len(own & theirs) / len(own | theirs) if own | theirs else 0.0
            if shared >= best and (partner is None or shared > best):
                best, partner = shared, other
        if partner is None:
            left.append(kernel)
            continue
        pairs.append(KernelChange("regrouped", (kernel,), (partner,)))
        rest = [other for other in rest if other is not partner]
    return pairs, left, rest


def _same(old: Any, new: Any) -> bool | None:
    return None if not old or not new else bool(old == new)


def _differences(about: str, old: Any, new: Any) -> list[Difference]:
    """What two counts by name differ in; nothing where a side has only a sum."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return []
    names = dict.fromkeys([*old, *new])
    return [
        Difference(about, name, old.get(name, 0), new.get(name, 0))
        for name in names
        if old.get(name, 0) != new.get(name, 0)
    ]


def _failed_guards(old: Any, new: Any) -> list[Difference]:
    """The guards that failed more or less often, in the words of the newer side."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return []
    # Of several texts of one guard the last is shown: that which only the newer side has.
    texts = {_lasting(text): text for text in (*old, *sorted(new, key=lambda text: text not in old))}
    counts: list[dict[str, int]] = [{}, {}]
    for of_side, guards in zip(counts, (old, new), strict=True):
        for text, count in guards.items():
            name = texts[_lasting(text)]
            of_side[name] = of_side.get(name, 0) + count
    return _differences(FAILED_GUARD, *counts)


def _lasting(guard: str) -> str:
    """The text of a failed guard without what differs between two processes of one code, or by an edit."""
    return _GUARD_LINE.sub("", _GUARD_ADDRESS.sub(r"\1", guard))


def graph_breaks(side: ExplainedSide) -> int | None:
    """The number of graph breaks, also of those whose reason is not kept; None where it is not known."""
    number = side.structure.get("graph_breaks", side.values.get("graph_breaks"))
    reasons = side.structure.get("break_reasons")
    numbers = [number, sum(reasons.values()) if isinstance(reasons, Mapping) else None]
    return max((int(number) for number in numbers if number is not None), default=None)


def more_graph_breaks(before: ExplainedSide, after: ExplainedSide) -> int:
    """How many more graph breaks the newer side has; 0 where a number is not known, or of another method."""
    old, new = graph_breaks(before), graph_breaks(after)
    if old is None or new is None or BREAK in _not_compared(before, after):
        return 0
    return new - old


def _breaks(before: ExplainedSide, after: ExplainedSide) -> list[Difference]:
    """The graph breaks that are more or fewer for a reason, where this is certain.

    A worker keeps the first reasons only: of the others a side may have any number.
    """
    old, new = before.structure, after.structure
    return [
        item
        for item in _differences(BREAK, _break_counts(old), _break_counts(new))
        if _is_exact(before if item.after > item.before else after, item.what)
    ]


def _is_exact(side: ExplainedSide, reason: str) -> bool:
    """Whether a side's count of breaks for a reason is exact. Of several lines one may not be kept."""
    reasons = side.structure["break_reasons"]
    return reason in reasons or sum(reasons.values()) == graph_breaks(side)


def _break_counts(structure: Mapping[str, Any]) -> Any:
    """The graph breaks by reason, without lines: an edit above a branch moves it."""
    reasons = structure.get("break_reasons")
    if not isinstance(reasons, Mapping):
        return reasons
    counts: dict[str, int] = {}
    for text, count in reasons.items():
        counts[without_line(text)] = counts.get(without_line(text), 0) + count
    return counts


def without_line(reason: str) -> str:
    """The reason of a graph break without the line of its branch: of net.py:9 the file alone."""
    return _BRANCH_LINE.sub(r"\1", reason)


def _number(about: str, name: str, before: ExplainedSide, after: ExplainedSide) -> list[Difference]:
    old, new = (side.structure.get(name, side.values.get(name)) for side in (before, after))
    return [Difference(about, name, old, new)] if None not in (old, new) and old != new else []


def _same_code(old: Mapping[str, Any], new: Mapping[str, Any], other_settings: bool) -> bool | None:
    """Whether the text of the generated code is the same; None where the records do not say it."""
    if old.get("version") != new.get("version"):
        return None
    if old.get("text") and new.get("text"):
        return bool(old["text"] == new["text"])
    same = _same(old.get("fingerprint"), new.get("fingerprint"))
    return None if other_settings and not same else same


def _given_up(structure: Mapping[str, Any]) -> Any:
    """The frames that dynamo gave up; its limit of recompiles among them."""
    frames, limit = structure.get("frames_given_up"), structure.get("recompile_limit")
    return {**frames, str(limit): 1} if limit and isinstance(frames, Mapping) else frames


def _registered(old: Any, new: Any) -> list[Difference]:
    if not isinstance(old, list) or not isinstance(new, list):
        return []
    return [Difference(REGISTERED, name, name in old, name in new) for name in sorted({*old} ^ {*new})]


def _statuses(old: str, new: str) -> list[Difference]:
    return [Difference(STATUS, "status", old, new)] if old != new else []


def _memory(old: Mapping[str, float], new: Mapping[str, float]) -> list[Difference]:
    """Peaks that changed by more than measuring them errs by."""
    findings = []
    for side, name in (("compiled", "backend_peak_bytes"), ("eager", "eager_peak_bytes")):
        if name in old and name in new:
            change, smaller = abs(new[name] - old[name]), min(old[name], new[name])
            if change >= max(_LEAST_MEMORY_BYTES, _LEAST_MEMORY * smaller):
                findings.append(Difference(MEMORY, side, old[name], new[name]))
    return findings


def _latencies(old: Mapping[str, float], new: Mapping[str, float]) -> list[Difference]:
    """Latencies whose intervals do not overlap, and that changed by over a tenth."""
    findings = []
    for side, name in (("compiled", "backend_ms"), ("eager", "eager_ms")):
        bounds = [values.get(f"{name}_{end}") for values in (old, new) for end in ("low", "high")]
        if None in bounds or name not in old or name not in new:
            continue
        old_low, old_high, new_low, new_high = (float(bound or 0.0) for bound in bounds)
        apart = old_high < new_low or new_high < old_low
        if apart and abs(new[name] / old[name] - 1) >= _LEAST_LATENCY:
            findings.append(Difference(LATENCY, side, old[name], new[name]))
    return findings


def _settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """Other vector instructions, or other settings of the back end."""
    if not isinstance(old.get("settings"), Mapping) or not isinstance(new.get("settings"), Mapping):
        return []
    flat = [
        {
            "vector instructions": side.get("isa"),
            **{name: value for name, value in side["settings"].items() if name != "config"},
            **dict(side["settings"].get("config") or {}),
        }
        for side in (old, new)
    ]
    names = dict.fromkeys([*flat[0], *flat[1]])
    return [
        Difference(SETTING, name, flat[0].get(name), flat[1].get(name))
        for name in names
        if flat[0].get(name) != flat[1].get(name)
    ]


def _run_options(before: ExplainedSide, after: ExplainedSide) -> list[Difference]:
    """Options by which two runs are on different testbeds, and what differs between their cases."""
    flat = [
        {**_flat(side.run.setting), **_flat(side.case.options), "batch size": side.case.batch_size}
        for side in (before, after)
    ]
    return [
        Difference(RUN_OPTION, name, flat[0].get(name), flat[1].get(name))
        for name in sorted({*flat[0], *flat[1]})
        if flat[0].get(name) != flat[1].get(name)
    ]


def _model_keys(old: Any, new: Any, run_options: Collection[str]) -> list[Difference]:
    """Keys of the model in its suite file that both records have; those of an older perfdash have fewer.

    `run_options`: options that differ between the runs. They replace the suite's keys of the same name.
    """
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return []
    both = (old.keys() & new.keys()) - set(run_options)
    return _contents(MODEL_KEY, *(_flat({name: side[name] for name in both}) for side in (old, new)))


def _flat(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a run or configuration by name, variables one by one, without those of compiling."""
    return {
        f"{name} {key}" if isinstance(value, Mapping) else name: item
        for name, value in options.items()
        if name not in _OF_COMPILING
        for key, item in (value.items() if isinstance(value, Mapping) else [(name, value)])
    }


def _contents(about: str, old: Any, new: Any) -> list[Difference]:
    """What differs between two tables, by name, such as digests of files."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return []
    return [
        Difference(about, name, old.get(name), new.get(name))
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def _packages(old: RunRow, new: RunRow) -> list[Difference]:
    return [_changed_line(PACKAGE, line) for line in package_changes(old, new)]


def _environment(before: ExplainedSide, after: ExplainedSide) -> list[Difference]:
    """Variables of the shell, and facts of the hosts that measured the case."""
    hosts = [side.host for side in (before, after) if side.host]
    lines = machine_changes(before.run, after.run, hosts)
    return [
        _changed_line(VARIABLE, line.removeprefix(_VARIABLE))
        if line.startswith(_VARIABLE)
        else _changed_line(ENVIRONMENT, line)
        for line in lines
    ]


_VARIABLE = "variable "


def _changed_line(about: str, line: str) -> Difference:
    """A line of detect.environment_changes as a finding."""
    name, _, values = line.partition(": ")
    old, _, new = values.partition(" | ")
    return Difference(about, name, *(None if value == "None" else value for value in (old, new)))


def _phases(old: Mapping[str, float], new: Mapping[str, float]) -> list[Difference]:
    """The phases of compiling whose change is large beside the whole."""
    whole = max(sum(old.values()), sum(new.values()))
    return [
        Difference(PHASE, name, old.get(name, 0.0), new.get(name, 0.0))
        for name in dict.fromkeys([*old, *new])
        if old and new
        and abs(new.get(name, 0.0) - old.get(name, 0.0)) >= max(_LEAST_PHASE_S, _LEAST_PHASE * whole)
    ]  # fmt: skip
