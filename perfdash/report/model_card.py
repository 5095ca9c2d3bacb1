"""The card of one result: verdict in a sentence, then the numbers behind it, one a line. Pure."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence

from perfdash.history.results import from_result, is_cpu_time
from perfdash.records import DISTURBED, PASSING, Result, Status, variation_in_words
from perfdash.report.reproduce import pattern
from perfdash.report.step_sizes import size_in_words, step_in_words

_LABEL = 12  # characters of the left column
_TINY_MS = 0.2  # below this the overhead of a call dominates
_LARGER_BATCH = 64
_COMPILED = "torch.compile"
_WORK = {"training": "training step", "generation": "generation"}
_PROCESSES = 6  # to try where an interval is too wide


def card(result: Result, place: Sequence[tuple[str, str]], run: str, width: int | None = None) -> str:
    """The card of a result.

    `place`: (label, text) of the lines about the run, `run`: what names it in commands. width None: lines are
    not wrapped.
    """
    lines = [("measured", _measured(result)), *place, *_numbers(result)]
    lines += [("note", note) for note in result.notes]
    lines += [("hint", hint) for hint in hints(result)]
    body = [_line(label, text, width) for label, text in lines]
    if result.error and result.error.log:
        show = ["perfdash", "show", run, "--model", pattern(result.case.model)]
        body += [_line("log", "To see the end of the log of the failure:", width), _command(show)]
    return "\n".join([wrapped(headline(result), width), "", *body])


def headline(result: Result) -> str:
    """What the result means, in one sentence with its speedup and interval."""
    name, compiler = result.case.model, _compiler(result)
    if result.status is Status.SKIPPED:
        return f"{name} was skipped: {result.skip_reason}"
    if result.status is Status.NOT_TONIGHT:
        return f"{name} was not measured in this run: {result.skip_reason}"
    if result.status is Status.FAIL_ACCURACY:
        return (
            f"{compiler} makes {name} compute WRONG outputs: {result.accuracy.get('detail') or 'no detail'}"
        )
    if result.status not in PASSING:
        return _failure(result)
    if result.speedup is None:
        return f"{name} ran, but its speedup was not measured"
    if result.marked_status == "pass (nothing captured)":
        return f"{compiler} captured NOTHING of {name}: the compiled side ran in eager mode"
    ratio = f"{result.speedup.value:.2f}x{_interval(result)}"
    if result.speedup.verdict == DISTURBED:
        return f"Other programs disturbed the measurement of {name}: {ratio} says nothing of {compiler}"
    if result.speedup.verdict in ("faster", "slower"):
        return f"{compiler} makes {name} {result.speedup.verdict.upper()}: {ratio}"
    if result.speedup.verdict == "equivalent":
        return f"{compiler} makes NO DIFFERENCE to the speed of {name}: {ratio}"
    return f"It is NOT CLEAR whether {compiler} makes {name} faster or slower: {ratio}"


def hints(result: Result) -> list[str]:
    """What to try next, as sentences; none where the numbers stand for themselves."""
    found = []
    case, eager, verdict = result.case, result.eager_ms, _verdict(result)
    if case.scenario == "inference" and eager and eager.median < _TINY_MS and case.batch_size < _LARGER_BATCH:
        found.append(
            f"The model takes {_milliseconds(eager.median)} per call, so "
            "the cost of the call itself dominates: "
            f"try --batch-size {_LARGER_BATCH}"
        )
    breaks = result.capture.get("graph_breaks") or 0
    if breaks:
        found.append(
            f"torch.compile split the model at {breaks} graph break{'s' * (breaks > 1)}: "
            "--env TORCH_LOGS=graph_breaks writes the reasons into the log"
        )
    if verdict == "inconclusive" and result.speedup and result.speedup.basis == "within":
        failed = next((note for note in result.notes if note.endswith(" processes failed")), None)
        why, remedy = (
            (failed, "its log in the run folder says why")
            if failed
            else ("It was sampled in one process", "leave --processes 1 out")
        )
        found.append(f"{why}, so how far processes differ is unknown and there is no verdict: {remedy}")
    elif verdict == "inconclusive":
        found.append(
            f"The interval is too wide for a verdict: try --processes {_PROCESSES}, and `perfdash doctor` "
            "for what disturbs this machine"
        )
    if verdict == DISTURBED:
        found.append("End the other programs, or choose other cores with --cores, and measure again")
    return found


def calls_to_pay_off(result: Result) -> float | None:
    """After how many calls the time saved exceeds the time of compiling.

    None where no time is saved, or the result did not pass.
    """
    if not (result.speedup and result.eager_ms and result.backend_ms and result.compilation_s):
        return None
    saved_ms = result.eager_ms.median - result.backend_ms.median
    if _verdict(result) != "faster" or saved_ms <= 0:
        return None
    return result.compilation_s * 1000 / saved_ms


def _verdict(result: Result) -> str:
    """The verdict of a result that passed, else nothing: wrong outputs are timed as well."""
    return result.speedup.verdict if result.speedup and result.status in PASSING else ""


def _compiler(result: Result) -> str:
    back_end = result.case.backend
    return _COMPILED if back_end == "inductor" else back_end


def _measured(result: Result) -> str:
    case = result.case
    dtype = f"autocast to {case.amp_dtype}" if case.amp_dtype else case.dtype
    size = size_in_words(from_result(result))
    words = [case.model, case.scenario, size, dtype, f"back end {case.backend}"]
    words += variation_in_words(case.configuration, case.dynamic, case.settings)
    words += [] if case.suite == "own" else [f"suite {case.suite}"]
    return ", ".join(words)


def _numbers(result: Result) -> list[tuple[str, str]]:
    lines = [
        ("latency", _latency(result)),
        ("compile", _compile(result)),
        ("pays off", _pays_off(result)),
        ("memory", _memory(result)),
        ("accuracy", _accuracy(result)),
    ]
    return [(label, text) for label, text in lines if text]


def _latency(result: Result) -> str:
    sides = [
        f"{_milliseconds(measured.median)} {name}"
        for name, measured in (("eager", result.eager_ms), ("compiled", result.backend_ms))
        if measured
    ]
    if not sides:
        return ""
    row = from_result(result)
    clock = "; CPU time, because other programs used the core" if is_cpu_time(row) else ""
    sizes = step_in_words(row)
    work = f"step of {sizes}" if sizes else _WORK.get(result.case.scenario, "call")
    return f"{' -> '.join(sides)} per {work}{clock}"


def _compile(result: Result) -> str:
    if result.compilation_s is None:
        return ""
    text = f"{result.compilation_s:.1f} s with empty caches"
    if result.warm_compilation_s is not None:
        text += f", {result.warm_compilation_s:.1f} s with filled ones"
    graphs, breaks = result.capture.get("graphs"), result.capture.get("graph_breaks")
    if graphs is not None:
        text += (
            f"; {graphs} graph{'s' * (graphs != 1)}, {breaks or 'no'} graph break{'s' * ((breaks or 0) > 1)}"
        )
    return text


def _pays_off(result: Result) -> str:
    calls = calls_to_pay_off(result)
    if calls is not None and result.backend_ms:
        work = "steps" if result.case.scenario == "sizes" else "calls"
        return (
            f"after {calls:,.0f} {work} ({_duration(calls * result.backend_ms.median / 1000)} of computing)"
        )
    if _verdict(result) == "slower":
        return "never: the compiled model is slower"
    if _verdict(result) == "equivalent":
        return "never: the compiled model is as fast as eager"
    return ""


def _milliseconds(value: float) -> str:
    """A latency with three significant digits."""
    return f"{value:,.0f} ms" if value >= 100 else f"{value:#.3g} ms"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.0f} hours"


def _memory(result: Result) -> str:
    sides = [
        f"{size / 1e6:.1f} MB {name}"
        for name, size in (("eager", result.eager_peak_bytes), ("compiled", result.backend_peak_bytes))
        if size
    ]
    if not sides:
        return ""
    ratio = result.compression_ratio
    return f"{' -> '.join(sides)} at the peak" + (f" (ratio {ratio:.2f})" if ratio else "")


def _accuracy(result: Result) -> str:
    accuracy = result.accuracy
    if not accuracy or result.status is Status.FAIL_ACCURACY:
        return ""
    if accuracy.get("status") != "pass":
        return f"not judged: {accuracy.get('detail') or accuracy.get('status')}"
    distance = (accuracy.get("distance") or {}).get("relative_rmse")
    off = "" if distance is None else f" (relative difference {distance:.1g})"
    return f"the outputs agree with eager's{off}"


def _failure(result: Result) -> str:
    name, compiler = result.case.model, _compiler(result)
    where = {"compile": f" while {compiler} compiled it", "load": " while it was built"}.get(
        result.failed_phase or "", f" in phase {result.failed_phase}" if result.failed_phase else ""
    )
    why = f": {result.error.message.strip()}" if result.error and result.error.message.strip() else ""
    return f"{name} FAILED{where}: {result.marked_status}{why}"


def _interval(result: Result) -> str:
    speedup = result.speedup
    if speedup is None or speedup.ci_low is None or speedup.ci_high is None:
        return ""
    return f" ({speedup.ci_low:.2f} to {speedup.ci_high:.2f})"


def _line(label: str, text: str, width: int | None) -> str:
    indent = " " * _LABEL
    lines = text.splitlines() or [""]
    first = f"  {label:<{_LABEL - 2}}{lines[0]}"
    return "\n".join(wrapped(line, width, indent) for line in [first, *(indent + rest for rest in lines[1:])])


def _command(words: Sequence[str]) -> str:
    """A command in one line whatever the width, to be copied."""
    return " " * _LABEL + shlex.join(words)


def wrapped(text: str, width: int | None, indent: str = "  ") -> str:
    """The text in lines of at most `width` characters; as it is where width is None."""
    if width is None:
        return text
    return "\n".join(
        textwrap.fill(line, max(width, 40), subsequent_indent=indent, break_on_hyphens=False)
        for line in text.splitlines()
    )
