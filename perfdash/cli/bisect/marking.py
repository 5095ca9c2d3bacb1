"""A person's word on a revision of a bisection, written into its journal."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from perfdash.bisection import events
from perfdash.bisection.journal import Journal
from perfdash.bisection.replay import MARKS, Course
from perfdash.errors import UsageError


def marked(folder: Path, word: str, side: str) -> str:
    """Marks it, and says what now. Raises UsageError for a mark that cannot be."""
    if side not in MARKS:
        raise UsageError(f"{side!r}: a revision is marked {', '.join(MARKS[:-1])} or {MARKS[-1]}")
    with Journal(folder) as journal:
        recorded = journal.events()
        course = Course(recorded)
        found = [(stage, place) for stage in course.stages if (place := stage.place_of(word)) is not None]
        if not found:
            raise UsageError(f"{word!r} is no revision of {folder.name}, or means several of them")
        inner = [(stage, place) for stage, place in found if 0 < place < stage.question.last]
        if not inner:
            label = found[-1][0].revisions[found[-1][1]].label
            raise UsageError(f"{label} is an end of the range: begin anew with other ends instead")
        stage, place = inner[-1]
        revision = stage.revisions[place]
        event = events.at(events.MARKED, stage.number, place, revision, side=side)
        try:
            Course([*recorded, event])
        except UsageError as error:
            raise UsageError(
                f"{revision.label} cannot be marked {side}: {error.__cause__ or error}"
            ) from error
        journal.append(event)
    on = f"perfdash bisect --resume {quote(str(folder))}"
    return f"{revision.label} {revision.title} is marked {side}. To go on: {on}"
