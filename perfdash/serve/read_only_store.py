"""Open the store read-only, and compute a digest that changes with it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from perfdash.history import schema
from perfdash.history.results import digest
from perfdash.history.store import Store, open_store

_WAIT_S = 10


def open_to_read(address: str) -> Store:
    """Open the store so that it refuses every write.

    It is opened normally first, which migrates an older store. Raises UsageError and
    MachineError as open_store does.
    """
    with open_store(address, create=False) as store:
        url, title, is_sqlite = store.engine.url, store.shown, store.is_sqlite
    if not is_sqlite:
        # Another client's lock must not block pages forever.
        options = f"-c default_transaction_read_only=on -c statement_timeout={60_000}"
        options_of_driver = {"connect_timeout": _WAIT_S, "options": options}
        return Store(sa.create_engine(url, connect_args=options_of_driver, pool_pre_ping=True), title)
    if "uri" not in url.query:  # else it is read-only already: nothing can be written where it lies
        # A removed file must give an error. Mode `ro` does not create a new one, and NullPool keeps no
        # connection open that would go on reading the deleted file.
        path = quote(os.fsencode(Path(str(url.database)).absolute()))
        url = sa.URL.create("sqlite", database=f"file:{path}", query={"mode": "ro", "uri": "true"})
    engine = sa.create_engine(
        url, poolclass=NullPool, connect_args={"timeout": _WAIT_S, "check_same_thread": False}
    )
    sa.event.listen(engine, "connect", _only_reads)
    return Store(engine, title)


def _only_reads(connection: Any, _: object) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA query_only = ON")
    connection.execute("PRAGMA cache_size = -65536")


def state_of(connection: sa.Connection) -> str:
    """A digest that changes whenever a run or an alert in the store changes."""
    runs, alerts = schema.runs, schema.alerts
    marks = [
        [list(row) for row in connection.execute(query)]
        for query in (
            sa.select(runs.c.id, runs.c.content, runs.c.judged).order_by(runs.c.id),
            sa.select(alerts.c.id, alerts.c.state, alerts.c.changed).order_by(alerts.c.id),
        )
    ]
    return digest(marks)[:32]
