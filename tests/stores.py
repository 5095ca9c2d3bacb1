"""Stores to test with: an SQLite file, and a PostgreSQL server of the tests' own (a socket, no network).

One empty store of each kind is made a test process, and most tests begin with a copy of it, which is faster.
The tests of the store and of its migrations begin with nothing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
import uuid
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from perfdash import history
from perfdash.files import dumps
from perfdash.history.store import Store, open_store

_MADE = "made"  # the PostgreSQL database that is copied


@functools.cache
def _made() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "history.db")
        open_store(str(path)).close()
        assert [file.name for file in Path(folder).iterdir()] == [path.name], "all is in the one file"
        return path.read_bytes()


def made_store(path: Path) -> Store:
    """An empty history in a new SQLite file, open."""
    path.write_bytes(_made())
    return open_store(str(path))


def migrated(address: str, revision: str = "head") -> sa.Engine:
    """An empty database that the migrations, those up to a revision, have given its tables."""
    url = sa.make_url(address if "://" in address else f"sqlite:///{address}")
    engine = sa.create_engine(
        url if url.drivername == "sqlite" else url.set(drivername="postgresql+psycopg"), json_serializer=dumps
    )
    config = Config()
    config.set_main_option("script_location", str(Path(history.__file__).with_name("migrations")))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    return engine


def filled(table: sa.Table, **values: Any) -> sa.Insert:
    """An insert with empty values in all other columns that must have one."""
    empty = {sa.Integer: 0, sa.Boolean: False, sa.JSON: {}, sa.Float: 0.0}
    for column in table.columns:
        if not (column.nullable or column.primary_key or column.server_default or column.name in values):
            kinds = [value for kind, value in empty.items() if isinstance(column.type, kind)]
            values[column.name] = kinds[0] if kinds else column.name
    return sa.insert(table).values(**values)


def as_revision_0012(store: Store) -> None:
    """Take the column that came since then; migration 0013 changes contents beside it."""
    with store.write() as connection:
        connection.execute(sa.text("alter table alerts drop column former_testbed"))
        connection.execute(sa.text("update perfdash_version set version_num = '0012'"))


def as_revision_0010(store: Store) -> None:
    """Take the tables that came since then from a store, so that it is migrated when it is opened again."""
    as_revision_0012(store)
    with store.write() as connection:
        connection.execute(sa.text("drop table result_hosts"))
        connection.execute(sa.text("update perfdash_version set version_num = '0010'"))


def earlier_texts(binary: str) -> tuple[str, ...]:
    """Make the tables of texts that migration 0010 replaces. `binary`: the type of such a column."""
    return (
        "create table artifacts (digest varchar(64) not null constraint pk_artifacts primary key, "
        f"data {binary} not null)",
        "create table result_artifacts (result_id bigint not null references results (id) on delete cascade, "
        "name text not null, digest varchar(64) not null references artifacts (digest), "
        "constraint pk_result_artifacts primary key (result_id, name))",
        "create index ix_result_artifacts_digest on result_artifacts (digest)",
    )


def as_revision_0007(path: Path) -> None:
    """Take what came since then from an SQLite history whose cases have no settings, details or texts."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for side in ("eager", "backend"):
            connection.execute(f"alter table results drop column {side}_instructions")
        connection.execute("alter table alerts drop column former_testbed")
        for table in ("result_hosts", "result_texts", "texts"):
            connection.execute(f"drop table {table}")
        for table in ("cases", "summaries"):
            connection.execute(f"alter table {table} drop column configuration")
        connection.execute("alter table cases drop column settings")
        (statement,) = connection.execute("select sql from sqlite_master where name = 'summaries'").fetchone()
        # SQLite drops no column of a key.
        of_table = connection.execute("pragma table_info(summaries)")
        columns = [row[1] for row in of_table if row[1] != "settings"]
        before = re.sub(r"settings TEXT DEFAULT \(?''\)? NOT NULL,|, settings(?=\))", "", statement)
        connection.execute("alter table summaries rename to later")
        connection.execute(before)
        connection.execute(f"insert into summaries select {', '.join(columns)} from later")
        connection.execute("drop table later")
        for statement in earlier_texts("blob"):
            connection.execute(statement)
        connection.execute("update perfdash_version set version_num = '0007'")
        connection.commit()


@pytest.fixture(scope="session")
def postgres():
    """The address of a server without databases of ours."""
    initdb = shutil.which("initdb") or next(
        (str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)), None
    )
    assert initdb, "no PostgreSQL server: ci/postgres.sh installs it"
    programs = Path(initdb).parent
    # Not below pytest's folder: others may not enter that, and a socket's path is short.
    home = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    as_user = []
    if os.getuid() == 0:  # which the server refuses
        shutil.chown(home, "postgres")
        as_user = ["runuser", "-u", "postgres", "--"]
    data = home / "data"

    def call(program, *arguments):
        command = [*as_user, str(programs / program), *arguments]
        done = subprocess.run(command, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout
        return done.stdout

    # Text is ordered as in most databases, not by its bytes (PostgreSQL 15 and later).
    icu = ["--locale-provider=icu", "--icu-locale=en-US"] if "--icu-locale" in call("initdb", "-?") else []
    try:
        call("initdb", "-D", str(data), "-U", "perfdash", "-A", "trust", "-E", "UTF8", "--no-sync", *icu)
        options = f"-k {home} -c listen_addresses='' -c fsync=off"
        call("pg_ctl", "-D", str(data), "-o", options, "-l", str(home / "log"), "-w", "start")
        try:
            yield f"postgresql://perfdash@/postgres?host={home}"
        finally:
            call("pg_ctl", "-D", str(data), "-m", "immediate", "stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_made(postgres):
    """The database that is copied is there."""
    with _databases(postgres) as connection:
        connection.execute(sa.text(f"create database {_MADE}"))
    open_store(postgres.replace("/postgres?", f"/{_MADE}?")).close()


@contextlib.contextmanager
def _databases(postgres):
    """A connection that makes and drops databases."""
    url = sa.make_url(postgres).set(drivername="postgresql+psycopg")
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@pytest.fixture
def postgres_address(postgres, request):
    """The address of a new database: empty, or with the tables of a store where the test takes `store`."""
    name, template = f"t{uuid.uuid4().hex}", ""
    if "store" in request.fixturenames:
        request.getfixturevalue("postgres_made")
        template = f" template {_MADE}"
    with _databases(postgres) as connection:
        connection.execute(sa.text(f"create database {name}{template}"))
    yield postgres.replace("/postgres?", f"/{name}?")
    with _databases(postgres) as connection:
        connection.execute(sa.text(f"drop database {name} with (force)"))


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def address(request, tmp_path):
    """The address of nothing yet, once of each kind; of an empty history where the test takes `store`."""
    if request.param == "postgres":
        return request.getfixturevalue("postgres_address")
    path = tmp_path / "history.db"
    if "store" in request.fixturenames:
        made_store(path).close()
    return str(path)


# For tests of what is done with a history: others show that both kinds of store hold and find the same.
in_sqlite = pytest.mark.parametrize("address", ["sqlite"], indirect=True)


@pytest.fixture
def store(address):
    opened = open_store(address)
    yield opened
    opened.close()
