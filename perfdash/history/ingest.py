"""Store runs: each completely or not at all. Storing a run twice changes nothing."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from perfdash.errors import UsageError
from perfdash.files import now
from perfdash.history import generated_code, nightlies, pass_rates_and_means, result_hosts, schema
from perfdash.history.acts import given_name
from perfdash.history.compression import pack
from perfdash.history.pass_rates_and_means import NAMED_SETTING, SETTING, grouped, setting_of, summarize
from perfdash.history.queries import CASE_COLUMNS, in_chunks, list_runs, read_run, rows_of
from perfdash.history.results import Imported, Row, RunRow, case_digest, digest, pruned_content
from perfdash.history.shards import Shards, names_of, runs_with_common_shards
from perfdash.history.store import Store
from perfdash.metrics import NUMBERS
from perfdash.records import DEFAULT_CONFIGURATION, PASSING, Case

TAKEN_IN, REPLACED, KNOWN = "imported", "replaced", "known"
# What a night is judged by, beside its results.
_JUDGED_BY = ("started", "state", "expected", "method", "noise", "environment_id")
OLDER = "left out: what is there is newer"
# In `imported` of a run that was replaced after it was judged: the testbeds and starts that it had then.
_JUDGED_AS = "judged_as"
_PASSING = [str(status) for status in PASSING]


class ForeignShards(UsageError):
    """A run was merged from shards of several runs, one of which is in the history."""


def take_in(
    store: Store, runs: Sequence[Imported], warn: Callable[[str], None] = lambda _: None
) -> list[str]:
    """Store runs in one transaction; return the outcome of each (TAKEN_IN, REPLACED, ...).

    A stored run is replaced, under its id, if it was resumed since then, its file was corrected or some of
    its shards were merged, with others or again; an older copy of it, a shard of it, or one without its
    samples, is left out. `warn` gets a line that names each other run that a merged run replaces. Raises
    ForeignShards for a run with a shard of another run, UsageError for values that no history can hold,
    MachineError if the database fails.
    """
    _refuse_conflicting_files(runs)
    replacements: list[str] = []
    with store.write() as connection:
        outcomes = [store_run(connection, imported, replacements.append) for imported in runs]
    for line in replacements:
        warn(line)
    return outcomes


def _check(imported: Imported) -> None:
    cases = set()
    for row in imported.rows:
        if row.case in cases:
            raise UsageError(f"{imported.run.source}: {row.case.name} is in it twice")
        cases.add(row.case)
        for name, value in {**row.values, **row.others}.items():
            if not math.isfinite(value) or (name in NUMBERS and value < 0):
                raise UsageError(f"{imported.run.source}: {row.case.name}: {name} is {value}")
        unknown = set(row.values) - set(NUMBERS)
        if unknown:
            raise ValueError(f"no column for {sorted(unknown)}")


def _refuse_conflicting_files(runs: Sequence[Imported]) -> None:
    """Raise UsageError if foreign files of one import would replace each other."""
    first_by_key: dict[str, Imported] = {}
    for imported in runs:
        first = first_by_key.setdefault(imported.key, imported)
        if first is imported:
            continue
        differ = first.content != imported.content or _beside_content(first) != _beside_content(imported)
        if not imported.run.uid and differ:
            raise UsageError(
                f"{first.run.source} and {imported.run.source} are of one run (same name, start, host and "
                "settings), but they differ: import the right one, or give each its own --started"
            )


def _beside_content(imported: Imported) -> tuple[Any, ...]:
    """What a correction of a foreign file may change and `content` leaves out: environment and marks.

    Cases are compared without batch sizes, because a failure may get one in the history.
    """
    marks = [(row.case, row.verdict or "", pass_rates_and_means.gave_up(row)) for row in imported.rows]
    marked = [(case_digest(replace(case, batch_size=0)), *mark) for case, *mark in marks if any(mark)]
    return environment_values(imported.run)["fingerprint"], sorted(marked)


def _is_known(connection: sa.Connection, old: sa.Row[Any], imported: Imported) -> bool:
    """Whether a run is stored already, as it is now."""
    same_content = imported.content in (old.content, pruned_content(old.content))
    if not same_content or imported.run.origin == "perfdash":
        return same_content
    (line,) = list_runs(connection, ids=[old.id])
    return _beside_content(read_run(connection, line)) == _beside_content(imported)


def store_run(connection: sa.Connection, imported: Imported, warn: Callable[[str], None]) -> str:
    """Store a run in a transaction, as `take_in` does; return the outcome."""
    _check(imported)
    run, rows = imported.run, imported.rows
    runs = schema.runs
    content = imported.content
    key = imported.key
    foreign = run.origin != "perfdash"
    stored = _without_other_runs(imported, _same_runs(connection, imported))
    old, others = (stored[0] if stored else None), stored[1:]
    if old is not None and _is_known(connection, old, imported):
        # An earlier perfdash stored the shards of a merged run beside it.
        is_whole = content == old.content and others and not any(_has_more(line, imported) for line in others)
        if not is_whole:
            if run.merged_from and not imported.copied:  # the same shards in a folder of another name
                _rename(connection, old, imported)
            return KNOWN
    elif not foreign and any(_has_more(line, imported) for line in stored):
        return OLDER
    import_details = _without_mark(run.imported)
    testbed = {"digest": run.testbed_digest, "host_class": run.host_class, "setting": dict(run.setting)}
    testbed_id = number_of(connection, schema.testbeds, "digest", testbed)
    values = {
        "key": old.key if old is not None and imported.copied else key,
        "content": content,
        "name": run.name,
        "started": run.started,
        "ended": run.ended,
        "state": run.state,
        "origin": run.origin,
        "source": run.source,
        "host_id": number_of(connection, schema.hosts, "name", {"name": run.host}),
        "testbed_id": testbed_id,
        "environment_id": number_of(connection, schema.environments, "fingerprint", environment_values(run)),
        "command": list(run.command),
        "noise": dict(run.noise),
        "expected": run.expected,
        "results": len(rows),
        "perfdash": run.perfdash,
        "imported": import_details,
        "method": dict(run.method),
        "taken_in": imported.taken_in or now(),
        "judged": None,
    }
    if foreign:
        rows = _with_known_sizes(connection, testbed_id, run.started, rows)
    same = old is not None and _same_results(connection, old, values, rows)
    if old is not None and same and foreign and old.environment_id == values["environment_id"]:
        if not imported.copied:
            # Only the name or source has changed, so the night keeps its judgement.
            renamed = {name: value for name, value in values.items() if name not in ("taken_in", "judged")}
            renamed["name"] = given_name(connection, old.id) or renamed["name"]
            connection.execute(sa.update(runs).where(runs.c.id == old.id).values(renamed))
        return KNOWN
    if old is not None and foreign and imported.taken_in and imported.taken_in <= old.taken_in:
        return OLDER
    if old is None:
        run_id = _insert(connection, runs, values)
    else:
        run_id = old.id
        for line in stored:
            if line.key != key and not foreign:
                warn(_replacement(imported, line))
        # No night is judged by samples, which return where a pruned run is imported again.
        same = same or _same_results(connection, old, values, rows, samples=False)
        if same and not others and all(getattr(old, name) == values[name] for name in _JUDGED_BY):
            values["judged"] = old.judged
        values["name"], first = _names(connection, old, imported)
        import_details.update(first)
        marks = [mark for line in (old, *others) for mark in line.imported.get(_JUDGED_AS, [])]
        if values["judged"] is None:
            marks += [[line.testbed_id, line.started] for line in (old, *others) if line.judged is not None]
        if marks:
            import_details[_JUDGED_AS] = marks
        connection.execute(sa.update(runs).where(runs.c.id == run_id), values)
        nightlies.rename_run(connection, old.name, str(values["name"]))
        for other in others:
            _put_in_place_of(connection, run_id, str(values["name"]), other)
        connection.execute(sa.delete(schema.results).where(schema.results.c.run_id == run_id))
        connection.execute(sa.delete(schema.summaries).where(schema.summaries.c.run_id == run_id))
    if rows:
        named = _with_one_name(connection, rows, run.started)
        _insert_rows(connection, run_id, named, _ids_of_hosts(connection, run))
        connection.execute(sa.insert(schema.summaries), summaries(run_id, named))
        if foreign:
            _give_size_to_stored_failures(connection, testbed_id, named)
    if old is not None:
        generated_code.drop_unused(connection)
    return TAKEN_IN if old is None else REPLACED


def _without_other_runs(imported: Imported, stored: Sequence[sa.Row[Any]]) -> list[sa.Row[Any]]:
    """Stored runs that are the same run. Raises ForeignShards if a new run has shards of another run."""
    run, shards = imported.run, Shards.of(imported.key, imported.run)
    same = []
    for line in stored:
        its_shards = Shards.of(line.key, line)
        if run.origin != "perfdash" or line.key == imported.key or shards.are_of_one_run(its_shards):
            same.append(line)
            continue
        if stored[0].key == imported.key:  # both are stored already
            continue
        common = names_of(imported, shards.common(its_shards))
        raise ForeignShards(
            f"{run.name} has {len(common)} of the {len(its_shards.names)} shards of {line.name}, which is in "
            f"the history (started {line.started}): {', '.join(common)}. The other shards differ, so the two "
            "are not one run. If shards of two nights were merged by mistake, merge those of one night. If "
            f"{run.name} is {line.name} measured again, first remove the old run: "
            f"perfdash history remove {shlex.quote(line.name)} --yes"
        )
    return same


def _replacement(imported: Imported, line: sa.Row[Any]) -> str:
    """One line on another stored run that a merged run replaces."""
    its_shards = Shards.of(line.key, line)
    common = len(Shards.of(imported.key, imported.run).common(its_shards))
    return (
        f"{imported.run.name} replaces {line.name} in the history (started {line.started}, {line.results} "
        f"results): {common} of its {len(its_shards.names)} shards are in both"
    )


def _has_more(stored: sa.Row[Any], imported: Imported) -> bool:
    """Whether a stored run has more results than the same run, a later end, or all its shards and others."""
    run = imported.run
    if (len(imported.rows), run.ended or "") < (stored.results, stored.ended or ""):
        return True
    return Shards.of(imported.key, run).are_part_of(Shards.of(stored.key, stored))


def _names(connection: sa.Connection, old: sa.Row[Any], imported: Imported) -> tuple[str, dict[str, str]]:
    """The name of a stored run that comes again, and for `imported` its first, if it was merged again."""
    run = imported.run
    if imported.copied and not run.merged_from:  # a person may have renamed it in the other history
        return old.name, {}
    own_name = given_name(connection, old.id)
    first = old.imported.get("first_name") or (None if own_name else old.name)
    if not run.merged_from or first in (None, run.name):
        return own_name or run.name, {}
    return own_name or run.name, {"first_name": str(first)}


def _rename(connection: sa.Connection, old: sa.Row[Any], imported: Imported) -> None:
    """Give a stored merged run the name and folder of its last merge."""
    name, first = _names(connection, old, imported)
    kept = {key: value for key, value in old.imported.items() if key != "first_name"}
    details = {**kept, **_without_mark(imported.run.imported), **first}
    values = {"name": name, "source": imported.run.source, "imported": details}
    connection.execute(sa.update(schema.runs).where(schema.runs.c.id == old.id).values(values))
    nightlies.rename_run(connection, old.name, name)


def _without_mark(imported: Mapping[str, Any]) -> dict[str, Any]:
    """`imported` of a run without its mark; a mark of another history means nothing here."""
    return {name: value for name, value in imported.items() if name != _JUDGED_AS}


def replaced_since_judged(connection: sa.Connection) -> dict[int, list[tuple[int, str]]]:
    """The runs that were replaced after they were judged, with the testbeds and starts that they had then.

    A run has several if it was put in place of several.
    """
    runs = schema.runs
    query = sa.select(runs.c.id, runs.c.imported)
    marked = connection.execute(query.where(runs.c.imported.cast(sa.Text).contains(f'"{_JUDGED_AS}"'))).all()
    return {
        row.id: [(testbed_id, started) for testbed_id, started in row.imported[_JUDGED_AS]]
        for row in marked
        if _JUDGED_AS in row.imported
    }


def mark_replaced(connection: sa.Connection, run_id: int, judged_as: Iterable[tuple[int, str]]) -> None:
    """Remember that a run was replaced after it was judged, with the testbeds and starts that it had then."""
    of_run = schema.runs.c.id == run_id
    imported = connection.execute(sa.select(schema.runs.c.imported).where(of_run)).scalar_one()
    marked = {**imported, _JUDGED_AS: [list(mark) for mark in judged_as]}
    connection.execute(sa.update(schema.runs).where(of_run).values(imported=marked))


def forget_replaced(connection: sa.Connection) -> None:
    """Forget which runs were replaced after they were judged."""
    runs = schema.runs
    for run_id in replaced_since_judged(connection):
        of_run = runs.c.id == run_id
        imported = connection.execute(sa.select(runs.c.imported).where(of_run)).scalar_one()
        connection.execute(sa.update(runs).where(of_run).values(imported=_without_mark(imported)))


def _same_runs(connection: sa.Connection, imported: Imported) -> list[sa.Row[Any]]:
    """The stored run that is the same run, whether older or newer; then others with measurements of it."""
    runs, run = schema.runs, imported.run
    read = (
        "id", "key", "content", "name", "results", "ended", "testbed_id", "imported", "taken_in", "judged",
        "excluded", *_JUDGED_BY,
    )  # fmt: skip
    query = sa.select(*runs.c[read])
    same = list(connection.execute(query.where(runs.c.key == imported.key)))
    if run.origin == "perfdash":
        return same + runs_with_common_shards(connection, imported, query)
    if same:
        return same
    # The copy or this history may come from perfdash 0.1, whose keys of foreign files were different.
    own = replace(imported, copied=None)
    other_key = own.key if imported.copied else own.earlier_key
    same = list(connection.execute(query.where(runs.c.key == other_key)))
    if same or imported.key != own.key:
        return same
    alike = [
        line.id
        for line in list_runs(connection, name=own.file_name)  # as 0.1 called its runs
        if (line.origin, line.started) == (run.origin, run.started)
        and read_run(connection, line).key == own.key
    ]
    return list(connection.execute(query.where(runs.c.id == alike[0]))) if len(alike) == 1 else []


def _put_in_place_of(connection: sa.Connection, run_id: int, name: str, other: sa.Row[Any]) -> None:
    """Remove another run, whose measurements a run has as well; what referred to it refers to that run."""
    runs = schema.runs
    for table, columns in _REFERENCES.items():
        for column in columns:
            connection.execute(sa.update(table).where(table.c[column] == other.id).values({column: run_id}))
    if other.excluded is not None:
        connection.execute(sa.update(runs).where(runs.c.id == run_id).values(excluded=other.excluded))
    connection.execute(sa.delete(schema.results).where(schema.results.c.run_id == other.id))
    connection.execute(sa.delete(runs).where(runs.c.id == other.id))
    nightlies.rename_run(connection, other.name, name)


# The acts of people on a run that is removed name none: a name that they gave is not that of the whole.
_REFERENCES = {schema.alerts: ("good_run_id", "bad_run_id", "seen_run_id"), schema.alert_events: ("run_id",)}


def _same_results(
    connection: sa.Connection,
    old: sa.Row[Any],
    values: Mapping[str, Any],
    rows: Sequence[Row],
    *,
    samples: bool = True,
) -> bool:
    """Whether the store has exactly these numbers, and has samples of the same, on the same testbed."""

    def numbers(rows: Iterable[Row]) -> dict[Case, tuple[Any, ...]]:
        return {
            row.case: (
                row.status,
                (row.verdict, pass_rates_and_means.gave_up(row)),
                row.started,
                dict(row.values),
                dict(row.others),
                set(row.samples) if samples else None,
            )
            for row in rows
        }

    if old.testbed_id != values["testbed_id"]:
        return False
    return numbers(rows_of(connection, old.id, whole=True)) == numbers(rows)


def _with_known_sizes(
    connection: sa.Connection, testbed_id: int, started: str, rows: Sequence[Row]
) -> tuple[Row, ...]:
    """Give failures without a batch size (0) the one that their model has on this testbed.

    The dynamo runners write 0 for a model that fails early; as a case of its own it would be no failure of
    the model. The size is that of the last run before, else of the first run after it; a failure keeps 0
    where that run has several sizes.
    """
    unsized = [row.case for row in rows if not row.case.batch_size and row.status not in _PASSING]
    if not unsized:
        return tuple(rows)
    runs, results, cases = schema.runs, schema.results, schema.cases
    is_before = runs.c.started <= started
    query = (
        sa.select(
            sa.func.max(sa.case((is_before, runs.c.started))).label("before"),
            sa.func.min(sa.case((~is_before, runs.c.started))).label("after"),
            *cases.c[CASE_COLUMNS],
        )
        .join_from(results, runs, results.c.run_id == runs.c.id)
        .join(cases, results.c.case_id == cases.c.id)
        .where(runs.c.testbed_id == testbed_id, cases.c.batch_size > 0)
        .group_by(*cases.c[CASE_COLUMNS])
    )
    found: dict[Case, list[tuple[str | None, str | None, Case]]] = {case: [] for case in unsized}
    for chunk in in_chunks(sorted({case.model for case in unsized})):
        for before, after, *columns in connection.execute(query.where(cases.c.model.in_(chunk))):
            case = Case(*columns)
            found.get(replace(case, batch_size=0), []).append((before, after, case))
    sized = {row.case for row in rows}
    known: dict[Case, Case] = {}
    for case, alike in found.items():
        last = max((before for before, _, _ in alike if before), default=None)
        first = min((after for _, after, _ in alike if after), default=None)
        of_run = [other for before, after, other in alike if (before == last if last else after == first)]
        if len(of_run) == 1 and of_run[0] not in sized:
            known[case] = of_run[0]
    return tuple(replace(row, case=known.get(row.case, row.case)) for row in rows)


def _give_size_to_stored_failures(connection: sa.Connection, testbed_id: int, rows: Sequence[Row]) -> None:
    """Move stored cases without a batch size that never passed to the size in these rows, if it is one.

    Nights that were judged without it are judged again, since they missed the failure of the model.
    """
    runs, results, cases = schema.runs, schema.results, schema.cases
    sizes: dict[Case, set[Case]] = {}
    for row in rows:
        sizes.setdefault(replace(row.case, batch_size=0), set()).add(row.case)
    of_testbed = sa.select(runs.c.id).where(runs.c.testbed_id == testbed_id).scalar_subquery()
    passed = sa.func.max(sa.case((results.c.status.in_(_PASSING), 1), else_=0))
    query = (
        sa.select(*cases.c["id", *CASE_COLUMNS])
        .join_from(results, cases, results.c.case_id == cases.c.id)
        .where(cases.c.batch_size == 0, results.c.run_id.in_(of_testbed))
        .group_by(*cases.c["id", *CASE_COLUMNS])
        .having(passed == 0)
    )
    judged: dict[int, str] = {}
    for number, *columns in connection.execute(query).all():
        alike = sizes.get(Case(*columns), set())
        if len(alike) != 1 or (case := next(iter(alike))).batch_size == 0:
            continue
        new = case_ids(connection, [case])[case]
        with_both = sa.select(results.c.run_id).where(results.c.case_id == new).scalar_subquery()
        of_case = results.c.case_id == number, results.c.run_id.in_(of_testbed)
        moved = *of_case, results.c.run_id.not_in(with_both)
        of_moved = runs.c.judged.is_not(None), runs.c.id.in_(sa.select(results.c.run_id).where(*moved))
        for run in connection.execute(sa.select(runs.c.id, runs.c.started).where(*of_moved)):
            judged[run.id] = run.started
        connection.execute(sa.update(results).where(*moved).values(case_id=new))
        alerts = schema.alerts
        renamed = sa.update(alerts).where(alerts.c.case_id == number, alerts.c.testbed_id == testbed_id)
        connection.execute(renamed.values(case_id=new))
    marks = replaced_since_judged(connection) if judged else {}
    for run_id, started in judged.items():
        mark_replaced(connection, run_id, [*marks.get(run_id, []), (testbed_id, started)])


def _with_one_name(connection: sa.Connection, rows: Sequence[Row], started: str) -> list[Row]:
    """Give each setting one configuration name, in these rows and in the store; settings identify it.

    That is the name in these rows. Rows of a run without --configuration (`default`), and rows of one that
    `started` before another run of the setting, take the stored name.
    """
    names = {}
    for *setting, name in grouped(rows):
        if name == DEFAULT_CONFIGURATION or _has_later_run(connection, setting, started):
            stored = schema.cases.c.configuration
            query = sa.select(stored).where(_is_of(schema.cases, setting), stored != DEFAULT_CONFIGURATION)
            name = connection.execute(query.limit(1)).scalar() or name
        names[tuple(setting)] = name
        if name == DEFAULT_CONFIGURATION:
            continue
        for table in (schema.cases, schema.summaries):
            renamed = sa.update(table).where(_is_of(table, setting), table.c.configuration != name)
            connection.execute(renamed.values(configuration=name))
    return [pass_rates_and_means.with_configuration(row, names[setting_of(row)]) for row in rows]


def _has_later_run(connection: sa.Connection, setting: Sequence[Any], started: str) -> bool:
    """Whether the store has a run of a setting that began after a time."""
    summaries, runs = schema.summaries, schema.runs
    query = sa.select(runs.c.id).join_from(runs, summaries, summaries.c.run_id == runs.c.id)
    query = query.where(runs.c.started > started, _is_of(summaries, setting))
    return connection.execute(query.limit(1)).first() is not None


def _is_of(table: sa.Table, setting: Sequence[Any]) -> sa.ColumnElement[bool]:
    """The condition that a row of `cases` or `summaries` is of a setting."""
    values = dict(zip(SETTING, setting, strict=True))
    if table is schema.cases:
        values["dtype"], _, amp_dtype = str(values["dtype"]).partition("-")
        values["amp_dtype"] = amp_dtype or None
    return sa.and_(*(table.c[name] == value for name, value in values.items()))


def _ids_of_hosts(connection: sa.Connection, run: RunRow) -> dict[str, int]:
    """The ids of the machines of a run that several measured, by name."""
    names = run.hosts if len(run.hosts) > 1 else []
    return {name: number_of(connection, schema.hosts, "name", {"name": name}) for name in names}


def _insert_rows(
    connection: sa.Connection, run_id: int, rows: Sequence[Row], hosts: Mapping[str, int]
) -> None:
    """Insert results with all that is theirs; `hosts`: the ids of machines of which each result names one."""
    ids = case_ids(connection, [row.case for row in rows])
    results = schema.results
    connection.execute(
        sa.insert(results),
        [
            {
                "run_id": run_id,
                "case_id": ids[row.case],
                "status": row.status,
                "started": row.started,
                "verdict": row.verdict,
                "basis": row.basis,
                **{name: row.values.get(name) for name in NUMBERS},
            }
            for row in rows
        ],
    )
    numbers = connection.execute(sa.select(results.c.case_id, results.c.id).where(results.c.run_id == run_id))
    result_ids = {row.case_id: row.id for row in numbers}
    details = [
        {
            "result_id": result_ids[ids[row.case]],
            "details": dict(row.details),
            "samples": pack(row.samples) if row.samples else None,
        }
        for row in rows
        if row.details or row.samples
    ]
    others = [
        {"result_id": result_ids[ids[row.case]], "name": name, "value": value}
        for row in rows
        for name, value in row.others.items()
    ]
    generated_code.store(connection, ((result_ids[ids[row.case]], row) for row in rows))
    if details:
        connection.execute(sa.insert(schema.result_details), details)
    if others:
        connection.execute(sa.insert(schema.other_metrics), others)
    result_hosts.store(connection, ((result_ids[ids[row.case]], row) for row in rows), hosts)


def case_ids(connection: sa.Connection, wanted: Sequence[Case]) -> dict[Case, int]:
    """The ids of cases; new cases are inserted."""
    digests = {case_digest(case): case for case in wanted}
    cases = schema.cases
    ids: dict[Case, int] = {}

    def look(missing: Sequence[str]) -> None:
        for chunk in in_chunks(missing):
            query = sa.select(cases.c.digest, cases.c.id).where(cases.c.digest.in_(chunk))
            ids.update({digests[text]: number for text, number in connection.execute(query)})

    look(list(digests))
    new = [text for text, case in digests.items() if case not in ids]
    if new:
        connection.execute(sa.insert(cases), [{"digest": text, **vars(digests[text])} for text in new])
        look(new)
    return ids


def environment_values(run: RunRow) -> dict[str, Any]:
    """The columns of an environment: packages, and the facts that may change the host's speed."""
    facts = run.facts
    if run.repositories:
        facts["repositories"] = run.repositories
    values = {
        "torch": run.torch,
        "torch_git_version": run.torch_git_version,
        "python": run.python,
        "packages": run.packages,
        "facts": facts,
    }
    # Left out of the digest where there are none, so that environments stored earlier stay the same.
    complete = {**values, "commits": run.commits} if run.commits else values
    return {"fingerprint": digest(complete), **values, "commits": run.commits}


def number_of(connection: sa.Connection, table: sa.Table, column: str, values: dict[str, Any]) -> int:
    """The id of the row with this value; a new row is inserted."""
    query = sa.select(table.c.id).where(table.c[column] == values[column])
    number = connection.execute(query).scalar()
    if number is None:
        return _insert(connection, table, values)
    return int(number)


def _insert(connection: sa.Connection, table: sa.Table, values: dict[str, Any]) -> int:
    return int(connection.execute(sa.insert(table).returning(table.c.id), values).scalar_one())


def summaries(run_id: int, rows: Iterable[Row]) -> list[dict[str, Any]]:
    """The rows of `summaries`, one for each suite and setting; docs/method.md says which cases count."""
    return [
        {
            "run_id": run_id,
            **dict(zip(NAMED_SETTING, setting, strict=True)),
            **vars(summarize(group)),
        }
        for setting, group in grouped(rows).items()
    ]
