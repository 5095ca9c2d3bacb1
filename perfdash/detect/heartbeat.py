"""Find missing, late and failed nightlies, now and before a given night. Pure.

A missing nightly has no row, so it is found by the time at which it was due.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from perfdash.history.nightlies import CLOCK_ERROR, OK, RUNNING, Nightly

GOOD = ("ok", "running")
LATEST = 20  # nightlies of a job that are read: the last two, also after some that began in the future
_NAMED = 5  # problems named in one line, at most


@dataclass(frozen=True)
class Beat:
    """The state of a nightly: ok, running, late, missing, partial, failed or never ended."""

    level: str
    job: str
    what: str

    @property
    def good(self) -> bool:
        return self.level in GOOD


def job_health(nightlies: Sequence[Nightly], now: datetime) -> list[Beat]:
    """The state of one job's nightlies (oldest first, at least one) at a moment.

    One that begins in the future is a failure, and the others are judged without it.
    """
    future = [nightly for nightly in nightlies if _time(nightly.begun) > now + CLOCK_ERROR]
    wrong = [
        Beat(
            "failed",
            nightly.job,
            f"{nightly.night}, begun {nightly.begun}, which is in the future: the clock was wrong. "
            "`perfdash nightly forget` removes it, with all others of this job",
        )
        for nightly in future
    ]
    past = [nightly for nightly in nightlies if nightly not in future]
    return [*(_present_health(past, now) if past else []), *wrong]


def problems_since(nightlies: Sequence[Nightly], since: datetime, now: datetime) -> list[Beat]:
    """What was wrong with one job's nightlies (oldest first, at least one) from a time until now, in order.

    Those that ended, or were due, in this time; at the end what is wrong now.
    """
    beats = []
    past = [nightly for nightly in nightlies if _time(nightly.begun) <= now + CLOCK_ERROR]
    for nightly, following in pairwise(past):
        if nightly.state != OK and _time(nightly.ended or nightly.begun) >= since:
            beats.append(_ending(nightly, True))
        missing = _missing(nightly, following)
        if missing and _time(following.begun) >= since:
            due = _time(nightly.begun) + timedelta(seconds=nightly.every_s)
            beats.append(_absent(nightly.job, missing, due))
    present = [beat for beat in job_health(nightlies, now) if not beat.good]
    return list(dict.fromkeys([*beats, *present]))


def _present_health(nightlies: Sequence[Nightly], now: datetime) -> list[Beat]:
    """The state of one job's nightlies, none of which begins in the future."""
    last = nightlies[-1]
    due = _time(last.begun) + timedelta(seconds=last.every_s)
    overdue = int((now - due).total_seconds() - last.grace_s) // last.every_s + 1
    ended = nightlies[-2] if last.state == RUNNING and overdue < 1 and len(nightlies) > 1 else last
    beats = [
        _ending(nightly, nightly is not last or overdue >= 1) for nightly in dict.fromkeys([ended, last])
    ]
    if overdue == 1:
        beats.append(Beat("late", last.job, f"one was due {_shown(due)} and has not started"))
    elif overdue > 1:
        beats.append(_absent(last.job, overdue, due))
    return beats


def _absent(job: str, number: int, first_due: datetime) -> Beat:
    return Beat("missing", job, f"{number} did not come, the first was due {_shown(first_due)}")


def health(nightlies_by_job: Mapping[str, Sequence[Nightly]], now: datetime) -> list[Beat]:
    """The state of every job from its last nightlies; `missing` if none ever began."""
    if not nightlies_by_job:
        return [Beat("missing", "nightly", "none ever began: `perfdash nightly begin` is what says so")]
    return [
        beat
        for job, nightlies in nightlies_by_job.items()
        for beat in (job_health(nightlies, now) if nightlies else [Beat("missing", job, "none ever began")])
    ]


def problems_before(nightlies: Sequence[Nightly], candidates: Sequence[Nightly]) -> str | None:
    """A line about failed and missing nightlies since the last good one, or None.

    `candidates`: the nightly, or every nightly that it may be; several are named.
    """
    problems = [
        f"{nightly.job}: {wrong}" if len(candidates) > 1 else wrong
        for nightly in candidates
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
        # After the colon come words of a log, which may name hosts and paths, so they are not published.
        why = (nightly.why or "").partition(": ")[0]
        problems.append(f"{nightly.begun[:10]} {beat.level}" + (f" ({why})" if why else ""))
        later = nightly
    more = [f"and {len(problems) - _NAMED} more"] if len(problems) > _NAMED else []
    return "; ".join([*problems[:_NAMED], *more]) or None


def nightlies_of(
    nightlies: Sequence[Nightly], run: str, started: str, settings: Collection[str]
) -> list[Nightly]:
    """The nightlies that a run may belong to.

    The nightly that names the run; otherwise every nightly that was running when it started and expects one
    of its settings, or expects nothing in particular. `settings`: each `suite device dtype` of the run, also
    with its threads.
    """
    if named := [nightly for nightly in nightlies if run in nightly.runs]:
        return named[-1:]
    latest = {}
    for nightly in nightlies:  # oldest first, so that the latest of each job stays
        if nightly.begun <= started:
            latest[nightly.job] = nightly
    at_work = [nightly for nightly in latest.values() if not nightly.runs and _at_work(nightly, started)]
    fitting = [nightly for nightly in at_work if set(nightly.expected) & set(settings)]
    return fitting or [nightly for nightly in at_work if not nightly.expected]


def _at_work(nightly: Nightly, started: str) -> bool:
    """Whether a nightly was running then; one that never ended runs until its next is overdue."""
    if nightly.ended is not None:
        return started <= nightly.ended
    return (_time(started) - _time(nightly.begun)).total_seconds() < nightly.every_s + nightly.grace_s


def _missing(nightly: Nightly, following: Nightly) -> int:
    """The number of nightlies that were due between two and are missing.

    The following one may begin a little early or late: up to an eighth of the interval, and the grace.
    """
    seconds = (_time(following.begun) - _time(nightly.begun)).total_seconds()
    if seconds <= nightly.every_s + nightly.grace_s:
        return 0
    return max(0, int(seconds + min(nightly.grace_s, nightly.every_s // 8)) // nightly.every_s - 1)


def _ending(nightly: Nightly, over: bool) -> Beat:
    """The state of a nightly that began; `over`: whether it should have ended by now."""
    why = f": {nightly.why}" if nightly.why else ""
    if nightly.state == RUNNING:
        level = "never ended" if over else "running"
        return Beat(level, nightly.job, f"{nightly.night}, begun {nightly.begun}")
    return Beat(nightly.state, nightly.job, f"{nightly.night}, begun {nightly.begun}{why}")


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _shown(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
