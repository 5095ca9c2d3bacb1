"""Histories of two nights with one open alert between them."""

from __future__ import annotations

from dataclasses import replace

import sqlalchemy as sa

from perfdash.history import alert_store, schema
from perfdash.history.ingest import take_in
from perfdash.history.queries import list_runs
from perfdash.history.store import open_store
from perfdash.records import Case
from tests.history.made import row, run

NIGHTS = ("2026-11-01", "2026-11-02")


def history(path, builds, setting=None, case=None, ran=(), structure=None, **alert):
    """Two nights and an alert between them; `builds`: commit and version of torch of each."""
    with open_store(str(path)) as store:
        for night, value, (commit, version) in zip(NIGHTS, (1.0, 1.1), builds, strict=True):
            of = Case(**{"suite": "timm", "model": "resnet18", **(case or {})})
            rows = [replace(row(of=of, backend_ms=value), structure=structure or {})]
            nights = run(
                night, rows, git=commit, torch=version, setting=setting or {},
                command=("perfdash", "run", *ran),
            )  # fmt: skip
            take_in(store, [nights])
        with store.write() as connection:
            good, bad = list_runs(connection)
            values = {"kind": "metric", "metric": "backend_ms", "case_id": 1, "change": 0.095, **alert}
            made = alert_store.Alert(
                testbed_id=good.testbed_id, state=alert_store.CONFIRMED, direction=1, good_run_id=good.id,
                bad_run_id=bad.id, seen_run_id=bad.id, opened=NIGHTS[1], changed=NIGHTS[1], **values,
            )  # fmt: skip
            alert_store.save(connection, made)
    return str(path)


def environment_said(commit, version="2.14.0"):
    return commit, version


def told_commits(db, *nights):
    """What the two nights say of the commits of installed packages."""
    with open_store(db) as store, store.write() as connection:
        for line, commits in zip(list_runs(connection), nights, strict=True):
            values = {
                "fingerprint": line.name, "torch": line.torch, "torch_git_version": line.torch_git_version,
                "packages": dict.fromkeys(commits, "1.0"), "facts": {}, "commits": commits,
            }  # fmt: skip
            table = schema.environments
            made = connection.execute(sa.insert(table).values(values).returning(table.c.id)).scalar_one()
            mine = schema.runs.c.id == line.id
            connection.execute(sa.update(schema.runs).where(mine).values(environment_id=made))


def recorded_facts(db, facts):
    """Replace what both nights recorded of their host."""
    with open_store(db) as store, store.write() as connection:
        connection.execute(sa.update(schema.environments).values(facts=facts))
