"""Open the store read-only, and compute a digest that changes with it."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from perfdash.detect.nightly_problems import nightly_problems
from perfdash.history import schema
from perfdash.history.results import digest
from perfdash.history.store import Store, connect_to_read, open_store

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
    # A removed file must give an error: this mode does not create a new one, and NullPool keeps no
    # connection open that would go on reading the deleted file.
    path = Path(str(url.database)).absolute()
    engine = sa.create_engine(url, poolclass=NullPool, creator=lambda: connect_to_read(path, _WAIT_S))
    sa.event.listen(engine, "connect", _only_reads)
    return Store(engine, title)


def _only_reads(connection: Any, _: object) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA query_only = ON")
    connection.execute("PRAGMA cache_size = -65536")


def state_of(connection: sa.Connection, now: datetime) -> str:
    """A digest that changes with each run, alert and decision, and with what is wrong with the nightlies."""
    runs, alerts, acts = schema.runs, schema.alerts, schema.acts
    marks = [
        [list(row) for row in connection.execute(query)]
        for query in (
            sa.select(*runs.c["id", "name", "content", "judged", "excluded"]).order_by(runs.c.id),
            sa.select(alerts.c.id, alerts.c.state, alerts.c.changed).order_by(alerts.c.id),
            sa.select(sa.func.count(), sa.func.max(acts.c.id)),
        )
    ]
    return digest([marks, [asdict(beat) for beat in nightly_problems(connection, now)]])[:32]
