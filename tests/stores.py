"""Stores to test with: an SQLite file, and a PostgreSQL server of the tests' own (a socket, no network)."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path

import pytest
import sqlalchemy as sa

from perfdash.history.store import open_store


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

    try:
        call("initdb", "-D", str(data), "-U", "perfdash", "-A", "trust", "-E", "UTF8", "--no-sync")
        options = f"-k {home} -c listen_addresses='' -c fsync=off"
        call("pg_ctl", "-D", str(data), "-o", options, "-l", str(home / "log"), "-w", "start")
        try:
            yield f"postgresql://perfdash@/postgres?host={home}"
        finally:
            call("pg_ctl", "-D", str(data), "-m", "immediate", "stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def postgres_address(postgres):
    """The address of a new, empty database."""
    name = f"t{uuid.uuid4().hex}"
    url = sa.make_url(postgres).set(drivername="postgresql+psycopg")
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"create database {name}"))
    yield postgres.replace("/postgres?", f"/{name}?")
    with engine.connect() as connection:
        connection.execute(sa.text(f"drop database {name} with (force)"))
    engine.dispose()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def address(request, tmp_path):
    """An empty history's address, once of each kind."""
    if request.param == "sqlite":
        return str(tmp_path / "history.db")
    return request.getfixturevalue("postgres_address")


@pytest.fixture
def store(address):
    opened = open_store(address)
    yield opened
    opened.close()
