"""Find missing, late and failed nightlies, now and before a given night. Pure.

Silence must never look like success: a nightly that did not come has no row that could say so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from perfdash.history.nightlies import OK, RUNNING, Nightly

GOOD = ("ok", "running")
_NAMED = 5  # problems named in one line, at most


@dataclass(frozen=True)
class Beat:
    """`level`: ok, running, late, missing, partial, failed or never ended."""

    level: str
    job: str
    what: str

    @property
    def good(self) -> bool:
        return self.level in GOOD


def job_health(nightlies: Sequence[Nightly], now: datetime) -> list[Beat]:
    """The state of one job's nightlies (oldest first, at least one) at a moment."""
    last = nightlies[-1]
    due = _time(last.begun) + timedelta(seconds=last.every_s)
    overdue = int((now - due).total_seconds() - last.grace_s) // last.every_s + 1
    ended = nightlies[-2] if last.state == RUNNING and overdue < 1 and len(nightlies) > 1 else last
    beats = [
        _ending(nightly, nightly is not last or overdue >= 1) for nightly in dict.fromkeys([ended, last])
    ]
    if overdue == 1:
        beats.append(Beat("late", last.job, f"one was due {_shown(due)} and has not begun"))
    elif overdue > 1:
        beats.append(Beat("missing", last.job, f"{overdue} did not come, the first was due {_shown(due)}"))
    return beats


def health(nightlies_by_job: Mapping[str, Sequence[Nightly]], now: datetime) -> list[Beat]:
    """The state of every job from its last nightlies; `missing` if none ever began."""
    if not nightlies_by_job:
        return [Beat("missing", "nightly", "none ever began: `perfdash nightly begin` is what says so")]
    return [
        beat
        for job, nightlies in nightlies_by_job.items()
        for beat in (job_health(nightlies, now) if nightlies else [Beat("missing", job, "none ever began")])
    ]


def problems_before(nightlies: Sequence[Nightly], these: Sequence[Nightly]) -> str | None:
    """One line on failed and missing nightlies since the last good one, or None.

    `these`: that nightly, or every candidate, which are then named.
    """
    problems = [
        f"{nightly.job}: {wrong}" if len(these) > 1 else wrong
        for nightly in these
        if (wrong := _wrong_before(nightlies, nightly))
    ]
    return f"Before this nightly: {'; '.join(problems)}" if problems else None


def _wrong_before(nightlies: Sequence[Nightly], this: Nightly) -> str | None:
    earlier = [nightly for nightly in nightlies if nightly.job == this.job and nightly.begun < this.begun]
    problems: list[str] = []
    later = this
    for nightly in reversed(earlier):
        if missing := _missing(nightly, later):
            problems.append(f"{missing} missing after {nightly.begun[:10]}")
        if nightly.state == OK:
            break
        beat = _ending(nightly, True)
        # After a colon stands what a log said, which may name hosts and paths: that is not for everybody.
        why = (nightly.why or "").partition(": ")[0]
        problems.append(f"{nightly.begun[:10]} {beat.level}" + (f" ({why})" if why else ""))
        later = nightly
    rest = [f"and {len(problems) - _NAMED} more"] if len(problems) > _NAMED else []
    return "; ".join([*problems[:_NAMED], *rest]) or None


def nightlies_of(
    nightlies: Sequence[Nightly], run: str, started: str, settings: Collection[str]
) -> list[Nightly]:
    """The nightly that a run is of: it names the run, or was at work then and expected what was measured.

    `settings`: each `suite device dtype` of the run, also with its threads. Several jobs that measure the
    same at the same time are several; a run beside all nightlies has none.
    """
    if named := [nightly for nightly in nightlies if run in nightly.runs]:
        return named[-1:]
    latest = {}
    for nightly in nightlies:  # oldest first: of a job the latest stays
        if nightly.begun <= started:
            latest[nightly.job] = nightly
    at_work = [nightly for nightly in latest.values() if not nightly.runs and _at_work(nightly, started)]
    fitting = [nightly for nightly in at_work if set(nightly.expected) & set(settings)]
    return fitting or [nightly for nightly in at_work if not nightly.expected]


def _at_work(nightly: Nightly, started: str) -> bool:
    """One that never ended does not go on for ever."""
    if nightly.ended is not None:
        return started <= nightly.ended
    return (_time(started) - _time(nightly.begun)).total_seconds() < nightly.every_s + nightly.grace_s


def _missing(nightly: Nightly, following: Nightly) -> int:
    """How many were due between two: none where the following came in time. A little early is in time."""
    seconds = (_time(following.begun) - _time(nightly.begun)).total_seconds()
    if seconds <= nightly.every_s + nightly.grace_s:
        return 0
    return max(0, int(seconds + min(nightly.grace_s, nightly.every_s // 8)) // nightly.every_s - 1)


def _ending(nightly: Nightly, over: bool) -> Beat:
    """`over`: it should have ended by now."""
    why = f": {nightly.why}" if nightly.why else ""
    if nightly.state == RUNNING:
        level = "never ended" if over else "running"
        return Beat(level, nightly.job, f"{nightly.night}, begun {nightly.begun}")
    return Beat(nightly.state, nightly.job, f"{nightly.night}, begun {nightly.begun}{why}")


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _shown(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
