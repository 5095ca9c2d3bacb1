"""Decide by their shards whether two runs are one run, and find the stored runs with shards of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

import sqlalchemy as sa

from perfdash.history import schema
from perfdash.history.results import Imported

# Half of the shards of a night are measured again sooner than this; the next night begins later.
_ONE_NIGHT = timedelta(hours=12)
COLUMNS = ("key", "name", "started", "ended", "imported")


class _Run(Protocol):
    """A run of the history, or one to be stored."""

    @property
    def name(self) -> str: ...
    @property
    def started(self) -> str: ...
    @property
    def ended(self) -> str | None: ...
    @property
    def imported(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Shards:
    """What a run was measured in: the keys and names of its shards, or its own; its start and end (UTC).

    The keys are unknown of a run that was merged by an earlier perfdash.
    """

    keys: frozenset[str]
    names: frozenset[str]
    started: str
    ended: str | None

    @classmethod
    def of(cls, key: str, run: _Run) -> Shards:
        names = run.imported.get("merged_from")
        if not names:
            return cls(frozenset([key]), frozenset([run.name]), run.started, run.ended)
        keys = run.imported.get("merged_keys") or ()
        return cls(frozenset(keys), frozenset(names), run.started, run.ended)

    def common(self, other: Shards) -> frozenset[str]:
        """The keys, else the names, of the shards that both have."""
        own, others = self._named_alike(other)
        return own & others

    def are_part_of(self, other: Shards) -> bool:
        """Whether another run has all of them, and more."""
        own, others = self._named_alike(other)
        return own < others

    def are_of_one_run(self, other: Shards) -> bool:
        """Whether two runs with a common shard are one run, of which some shards are new.

        This needs more than half of the shards of the smaller run. If exactly half are common, the others
        were measured again, or the next night was merged with shards of this one: the time decides.
        """
        own, others = self._named_alike(other)
        common, smaller = len(own & others), min(len(own), len(others))
        return 2 * common > smaller or (2 * common == smaller and self._is_of_one_night(other))

    def _is_of_one_night(self, other: Shards) -> bool:
        starts_and_ends = [(self.started, other.started), (self.ended, other.ended)]
        try:
            return all(
                abs(datetime.fromisoformat(first) - datetime.fromisoformat(second)) < _ONE_NIGHT
                for first, second in starts_and_ends
                if first and second
            )
        except (TypeError, ValueError):  # a run folder may have any text as its time
            return False

    def _named_alike(self, other: Shards) -> tuple[frozenset[str], frozenset[str]]:
        has_keys = self.keys and other.keys
        return (self.keys, other.keys) if has_keys else (self.names, other.names)


def runs_with_common_shards(
    connection: sa.Connection, imported: Imported, query: sa.Select[Any]
) -> list[sa.Row[Any]]:
    """The other stored runs that have measurements of a run; first the one with most results.

    They were merged from some of the same shards, are a shard of it, or have it as a shard. `query` selects
    at least COLUMNS.
    """
    runs, run = schema.runs, imported.run
    query = query.where(runs.c.origin == "perfdash", runs.c.key != imported.key)
    # Runs with a common shard were measured at the same time; one shard may have had a wrong clock.
    at_the_same_time = [sa.or_(runs.c.ended.is_(None), runs.c.ended >= run.started)]
    if run.ended:
        at_the_same_time.append(runs.c.started <= run.ended)
    is_shard_of = runs.c.imported.cast(sa.Text).contains(f'"{imported.key}"')
    is_shard = runs.c.key.in_(run.merged_keys) if run.merged_from else is_shard_of
    query = query.where(sa.or_(sa.and_(*at_the_same_time), is_shard))
    shards = Shards.of(imported.key, run)
    stored = connection.execute(query.order_by(runs.c.results.desc(), runs.c.id))
    return [line for line in stored if shards.common(Shards.of(line.key, line))]


def names_of(imported: Imported, common: frozenset[str]) -> list[str]:
    """The names of shards of a run that are given by key or name."""
    run = imported.run
    keys = run.merged_keys or (imported.key,)
    names = run.merged_from or (run.name,)
    by_key = dict(zip(keys, names, strict=False))
    return sorted(by_key.get(shard, shard) for shard in common)
