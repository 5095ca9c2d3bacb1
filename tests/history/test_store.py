from __future__ import annotations

import os
import re
import resource
import sqlite3
import threading
from math import exp, sqrt
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from perfdash.errors import MachineError, UsageError
from perfdash.history import schema, store
from perfdash.history.pass_rates_and_means import SETTING, grouped, summarize
from perfdash.history.queries import rows_of
from perfdash.history.store import HEAD, VERSION_TABLE, BrokenHistory, NoHistory, ReadOnlyHistory, open_store
from perfdash.serve.read_only_store import open_to_read
from tests.stores import filled, migrated

VERSIONS = Path(store.__file__).with_name("migrations") / "versions"


def test_head_is_the_newest_migration():
    assert max(path.name[:4] for path in VERSIONS.glob("*.py")) == HEAD


def test_the_migrations_make_the_tables_that_schema_describes(address):
    migrated(address).dispose()
    with open_store(address) as opened, opened.read() as connection:
        options = {"compare_type": False, "version_table": VERSION_TABLE}
        context = MigrationContext.configure(connection, opts=options)
        differences = compare_metadata(context, schema.metadata)
    assert differences == []


def test_a_new_store_has_the_tables_that_the_migrations_make(address, tmp_path):
    """Their columns are in another order, and what a migration needed for old rows may be a default."""

    def tables(engine):
        inspector = sa.inspect(engine)
        return {
            name: (
                {
                    column["name"]: (str(column["type"]), column["nullable"])
                    for column in inspector.get_columns(name)
                },
                inspector.get_pk_constraint(name),
                sorted(map(str, inspector.get_foreign_keys(name))),
                sorted(map(str, inspector.get_unique_constraints(name))),
                sorted(map(str, inspector.get_indexes(name))),
            )
            for name in inspector.get_table_names()
        }

    with open_store(address) as made:
        new = tables(made.engine)
        revision = "select version_num from perfdash_version"
        with made.engine.begin() as connection:
            assert connection.execute(sa.text(revision)).scalar() == HEAD
            schema.metadata.drop_all(connection)
            connection.execute(sa.text(f"drop table {VERSION_TABLE}"))
    engine = migrated(address)
    migrations = tables(engine)
    engine.dispose()
    assert new == migrations


def test_opening_again_keeps_what_is_there(address):
    with open_store(address) as first, first.write() as connection:
        connection.execute(sa.insert(schema.hosts).values(name="farm"))
    with open_store(address) as opened, opened.read() as connection:
        assert connection.execute(sa.select(schema.hosts.c.name)).scalars().all() == ["farm"]


def test_what_is_committed_survives_a_power_cut(tmp_path):
    with open_store(str(tmp_path / "history.db")) as opened, opened.write() as connection:
        full = 2
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == full


def test_a_transaction_that_fails_leaves_nothing(store):
    def enter():
        with store.write() as connection:
            connection.execute(sa.insert(schema.hosts).values(name="farm"))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        enter()
    with store.read() as connection:
        assert connection.execute(sa.select(schema.hosts)).all() == []


def test_many_may_open_a_new_store_at_once(address):
    errors = []

    def work(number):
        try:
            with open_store(address) as opened, opened.write() as connection:
                connection.execute(sa.insert(schema.hosts).values(name=f"host{number}"))
        except Exception as error:  # whatever it is, the test shows it
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with open_store(address) as opened, opened.read() as connection:
        assert len(connection.execute(sa.select(schema.hosts)).all()) == 6


def test_setting_up_a_new_file_waits_for_others_that_do(monkeypatch):
    """SQLite refuses the change to WAL at once, without waiting, while another connection makes it."""

    class Busy:
        refusals = ["database is locked"] * 2

        def execute(self, statement):
            if "journal_mode" in statement and self.refusals:
                raise sqlite3.OperationalError(self.refusals.pop())

    waited = []
    monkeypatch.setattr("time.sleep", waited.append)
    store._set_up_sqlite(Busy(), 300.0)
    assert len(waited) == 2
    Busy.refusals = ["disk I/O error"]
    with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
        store._set_up_sqlite(Busy(), 300.0)


def test_a_glance_neither_makes_nor_migrates_a_store(address):
    with pytest.raises(NoHistory):
        store.open_for_a_glance(address)
    with open_store(address) as opened, opened.write() as connection:
        connection.execute(sa.text("update perfdash_version set version_num = '0012'"))
    with store.open_for_a_glance(address) as opened, opened.read() as connection:
        assert connection.execute(sa.text("select version_num from perfdash_version")).scalar() == "0012"
        if not opened.is_sqlite:
            assert connection.execute(sa.text("show statement_timeout")).scalar() == "3s"


def test_a_newer_store_is_refused(address):
    with open_store(address) as opened, opened.write() as connection:
        connection.execute(sa.text("update perfdash_version set version_num = '9999'"))
    with pytest.raises(UsageError, match="newer perfdash"):
        open_store(address)


def _write_older_store(path, host):
    """A store of an older perfdash with one host; `host` is its name in SQL."""
    open_store(str(path)).close()
    with sqlite3.connect(path) as connection:
        connection.execute("update perfdash_version set version_num = '0000'")
        connection.execute(f"insert into hosts (name) values ({host})")
    connection.close()


def test_an_older_store_is_migrated_after_a_backup(tmp_path, monkeypatch):
    path = tmp_path / "history.db"
    _write_older_store(path, "'farm'")
    upgraded = []
    monkeypatch.setattr("alembic.command.upgrade", lambda *arguments: upgraded.append(arguments[1]))
    open_store(str(path)).close()
    assert upgraded == ["head"]
    with sqlite3.connect(tmp_path / "history.db.schema0000.bak") as backup:
        assert backup.execute("select name from hosts").fetchall() == [("farm",)]
        assert backup.execute("select version_num from perfdash_version").fetchall() == [("0000",)]
    backup.close()


def test_a_mean_that_0_1_0_stored_has_the_interval_of_the_same_results_today(address):
    """All models of a fork parent err together by 0.8 %; 0.1.0 took 0.2 % for both parents."""
    engine = migrated(address, "0004")
    tables = sa.MetaData()
    reached = 0.02  # of each model's log, with 95 %
    groups = {"float32": ["processes"] * 41 + ["pooled"] * 4, "bfloat16": ["pooled"] * 2, "amp": ["pooled"]}
    not_counted = {"disturbed": {"verdict": "disturbed"}, "eager": {"calls_captured": 0}, "gave up": {}}
    with engine.begin() as connection:
        tables.reflect(connection)
        of = tables.tables
        for table in ("hosts", "environments", "testbeds"):
            connection.execute(filled(of[table], id=1))
        for run_id, version in ((1, "0.1.0"), (2, "0.2.0")):
            ids = {"host_id": 1, "testbed_id": 1, "environment_id": 1, "key": version}
            connection.execute(filled(of["runs"], id=run_id, perfdash=version, **ids))
        interval = {"speedup": 2.0, "speedup_low": 2 * exp(-reached), "speedup_high": 2 * exp(reached)}
        setting = {"suite": "timm", "device": "cpu", "threads": 1, "scenario": "inference"}
        for dtype, bases in groups.items():
            of_dtype = {**setting, "dtype": dtype, "amp_dtype": "float16" if dtype == "amp" else None}
            others = [("pooled", name) for name in not_counted] if dtype == "float32" else []
            for number, (basis, name) in enumerate([*((basis, None) for basis in bases), *others]):
                insert = filled(of["cases"], digest=f"{dtype} {number}", model=f"m{number}", **of_dtype)
                (case_id,) = connection.execute(insert).inserted_primary_key
                for run_id in (1, 2):
                    values = {"run_id": run_id, "case_id": case_id, "status": "pass", "verdict": "faster"}
                    values |= {"basis": basis, **interval, **not_counted.get(name, {})}
                    inserted = connection.execute(filled(of["results"], **values)).inserted_primary_key
                    if name == "gave up":
                        details = {"result_id": inserted[0], "details": {"recompile_limit": True}}
                        connection.execute(filled(of["result_details"], **details))
            count = len(bases)
            shared = 0.002 if count > 1 else 0.0
            reach = 1.959964 * sqrt((reached / 1.959964) ** 2 / count + shared**2)
            stored = {"speedup": 2.0, "speedup_low": 2 * exp(-reach), "speedup_high": 2 * exp(reach)}
            stored |= {**setting, "dtype": "amp-float16" if dtype == "amp" else dtype, "measured": count}
            for run_id in (1, 2):
                insert = filled(of["summaries"], run_id=run_id, backend="backend", dynamic=False, **stored)
                connection.execute(insert)
    engine.dispose()
    with open_store(address) as opened, opened.read() as connection:
        rows = rows_of(connection, 1, details=True)
        summaries = connection.execute(sa.select(schema.summaries)).all()
    intervals = {(mean.run_id, mean.dtype): (mean.speedup_low, mean.speedup_high) for mean in summaries}
    for setting_of_rows, group in grouped(rows).items():
        dtype, today = setting_of_rows[SETTING.index("dtype")], summarize(group)
        assert intervals[1, dtype] == pytest.approx((today.speedup_low, today.speedup_high), rel=1e-9)
        is_single = today.measured == 1
        assert (intervals[2, dtype] == pytest.approx(intervals[1, dtype], rel=1e-9)) == is_single


def test_a_stored_pass_rate_leaves_out_what_the_machine_lost(address):
    engine = migrated(address, "0013")
    tables = sa.MetaData()
    statuses = {"pass": 2, "infra_error": 3, "crash": 1, "skipped": 4}
    with engine.begin() as connection:
        tables.reflect(connection)
        of = tables.tables
        for table in ("hosts", "environments", "testbeds"):
            connection.execute(filled(of[table], id=1))
        connection.execute(filled(of["runs"], id=1, host_id=1, testbed_id=1, environment_id=1))
        for threads, by_status in enumerate((statuses, {"pass": 2, "crash": 1})):
            setting = {name: name for name in ("suite", "device", "dtype", "scenario", "backend")}
            attempted = sum(by_status.values()) - by_status.get("skipped", 0)
            values = {"run_id": 1, "dynamic": False, "threads": threads, **setting, "statuses": by_status}
            connection.execute(filled(of["summaries"], attempted=attempted, **values))
    engine.dispose()
    with open_store(address) as opened, opened.read() as connection:
        assert connection.execute(sa.select(schema.summaries.c.attempted)).scalars().all() == [3, 3]


def test_a_backup_for_which_there_is_no_room_leaves_nothing(tmp_path):
    path = tmp_path / "history.db"
    _write_older_store(path, "zeroblob(20000000)")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000_000, limits[1]))
    try:
        with pytest.raises(MachineError, match=r"no backup .* Make room .*three times its size \(121 MB\)"):
            open_store(str(path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [file.name for file in tmp_path.iterdir()] == ["history.db"]


def test_an_older_history_that_may_not_be_written_asks_for_the_permission_and_not_for_room(
    tmp_path, monkeypatch
):
    path = tmp_path / "history.db"
    _write_older_store(path, "zeroblob(1000)")
    monkeypatch.setattr(store.os, "access", lambda file, mode: False)  # root may write everything
    with pytest.raises(
        MachineError, match=r"of an older perfdash .* permission .* and its folder"
    ) as refused:
        open_store(str(path))
    assert "room" not in str(refused.value)
    assert [file.name for file in tmp_path.iterdir()] == ["history.db"]


@pytest.mark.parametrize("copy_of", [None, "an earlier try", "another process"])
def test_a_migration_without_room_says_how_much_it_needs_and_keeps_no_copy(tmp_path, monkeypatch, copy_of):
    """Its own copy would take the room that the next try needs. Any other copy stays."""
    path = tmp_path / "history.db"
    copy = tmp_path / "history.db.schema0000.bak"
    _write_older_store(path, "zeroblob(1000000)")
    if copy_of == "an earlier try":
        copy.touch()

    def fill(config, _):
        if copy_of == "another process":
            (tmp_path / "part").touch()
            (tmp_path / "part").replace(copy)
        connection = config.attributes["connection"]
        connection.exec_driver_sql("pragma max_page_count = 1")  # SQLITE_FULL, as of a full disk
        connection.exec_driver_sql("insert into hosts (name) values (zeroblob(2000000))")

    with monkeypatch.context() as patched:
        patched.setattr("alembic.command.upgrade", fill)
        message = r"cannot be migrated: database or disk is full\. It is unchanged\. Make .* size \(7 MB\)"
        with pytest.raises(MachineError, match=message):
            open_store(str(path))
    assert {file.name for file in tmp_path.iterdir()} == {path.name} | ({copy.name} if copy_of else set())
    with sqlite3.connect(path) as connection:
        assert connection.execute("select count(*) from hosts").fetchone() == (1,)
    connection.close()


def test_a_file_that_is_no_database_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("not a database, " * 100)
    with pytest.raises(UsageError, match=r"notes\.txt: it is no SQLite database"):
        open_store(str(tmp_path / "notes.txt"))


def test_a_history_that_is_damaged_is_not_to_be_imported_into(tmp_path):
    path = tmp_path / "my runs" / "history.db"
    path.parent.mkdir()
    open_store(str(path)).close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    advice = rf"history\.db is damaged.*: move it away, .*perfdash history import .*--db '{path}'"
    with pytest.raises(BrokenHistory, match=advice), open_store(str(path)) as store, store.read() as reading:
        reading.execute(sa.select(schema.hosts.c.name)).all()


def test_another_programs_database_is_refused(tmp_path):
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("create table songs (title text)")
    connection.close()
    with pytest.raises(UsageError, match="no history of perfdash"):
        open_store(str(tmp_path / "other.db"))


def test_a_table_of_another_program_is_not_taken_over(address):
    engine = (
        sa.create_engine(sa.make_url(address).set(drivername="postgresql+psycopg"))
        if "://" in address
        else (sa.create_engine(f"sqlite:///{address}"))
    )
    with engine.begin() as connection:
        connection.execute(sa.text("create table hosts (whose text)"))
    engine.dispose()
    with pytest.raises(UsageError, match="no history of perfdash"):
        open_store(address)


@pytest.mark.parametrize("address", ["mysql://host/name", "sqlite://", "sqlite:///:memory:", "what ever://"])
def test_addresses_that_are_none(address):
    with pytest.raises(UsageError, match="--db"):
        open_store(address)


def test_a_folder_whose_name_is_no_text(tmp_path):
    """Also every name beyond ASCII, where Python takes names for ASCII: LC_ALL=C without UTF-8 mode."""
    address = str(tmp_path / os.fsdecode(b"caf\xe9") / "history.db")
    with open_store(address) as made:
        assert made.shown == address
    with open_to_read(address) as opened, opened.read() as connection:
        assert connection.execute(sa.select(schema.runs.c.id)).all() == []


def test_a_folder_is_no_history(tmp_path):
    with pytest.raises(UsageError, match="it is a folder"):
        open_store(str(tmp_path))


def test_asking_makes_no_store(tmp_path):
    with pytest.raises(UsageError, match="there is no history"):
        open_store(str(tmp_path / "history.db"), create=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.postgres
def test_a_server_that_is_not_there_names_no_password():
    with pytest.raises(MachineError) as caught:
        open_store("postgresql://me:s3cret@127.0.0.1:1/x")
    assert "s3cret" not in str(caught.value)
    assert re.search("cannot be opened", str(caught.value))


@pytest.mark.slow
@pytest.mark.postgres
def test_a_writer_that_waits_in_vain_names_the_other(postgres_address, monkeypatch):
    monkeypatch.setattr(store, "_BUSY_S", 1.0)
    with open_store(postgres_address) as first, open_store(postgres_address) as second, first.write():
        other = r"another writer \(perfdash on .+, process \d+; process \d+ of the server; began \d+ s ago\)"
        with pytest.raises(MachineError, match=other), second.write():
            pass


@pytest.mark.slow
@pytest.mark.postgres
def test_a_stopped_writer_holds_no_other_up(postgres_address, monkeypatch):
    """What it wrote is not stored, also where it goes on."""
    monkeypatch.setattr(store, "_IDLE_S", 1.0)

    def names(opened):
        with opened.read() as connection:
            return connection.execute(sa.select(schema.hosts.c.name)).scalars().all()

    with open_store(postgres_address) as stopped, open_store(postgres_address) as second:

        def write():
            with stopped.write() as connection:
                connection.execute(sa.insert(schema.hosts).values(name="stopped"))
                with second.write() as following:
                    following.execute(sa.insert(schema.hosts).values(name="following"))
                connection.execute(sa.insert(schema.hosts).values(name="late"))

        with pytest.raises(MachineError, match="idle-in-transaction timeout"):
            write()
        assert names(stopped) == names(second) == ["following"]


def test_a_store_that_cannot_be_written_can_be_read(tmp_path, monkeypatch):
    path = str(tmp_path / "history.db")
    with open_store(path) as opened, opened.write() as connection:
        connection.execute(sa.insert(schema.hosts).values(name="farm"))
    monkeypatch.setattr(store.os, "access", lambda *_: False)
    with open_store(path, create=False) as opened:
        with opened.read() as connection:
            assert connection.execute(sa.select(schema.hosts.c.name)).scalars().all() == ["farm"]

        def write():
            with opened.write() as connection:
                connection.execute(sa.insert(schema.hosts).values(name="other"))

        with pytest.raises(ReadOnlyHistory, match="you may only read it"):
            write()


@pytest.mark.postgres
def test_a_reader_of_a_server_is_told_so(postgres_address):
    with open_store(postgres_address) as opened, opened.write() as connection:
        for statement in (
            "create role reader login",
            "grant select on all tables in schema public to reader",
        ):
            connection.execute(sa.text(statement))
    try:
        with open_store(postgres_address.replace("//perfdash@", "//reader@"), create=False) as opened:

            def write():
                with opened.write() as connection:
                    connection.execute(sa.insert(schema.hosts).values(name="other"))

            with pytest.raises(ReadOnlyHistory, match="you may only read it"):
                write()
    finally:
        with open_store(postgres_address) as opened, opened.write() as connection:
            connection.execute(sa.text("drop owned by reader"))
            connection.execute(sa.text("drop role reader"))


def test_a_full_disk_is_the_machines_fault(tmp_path):
    opened = open_store(str(tmp_path / "history.db"))
    with opened.read() as connection:
        pages = connection.exec_driver_sql("pragma page_count").scalar()
    assert pages

    def fill():
        with opened.write() as connection:
            connection.exec_driver_sql(f"pragma max_page_count = {pages}")  # SQLITE_FULL, as of a full disk
            connection.execute(sa.insert(schema.hosts), [{"name": "x" * 5000 + str(n)} for n in range(100)])

    with pytest.raises(MachineError, match="history import"):
        fill()
    opened.close()
    with open_store(str(tmp_path / "history.db")) as again, again.read() as connection:
        assert connection.execute(sa.select(schema.hosts)).all() == []
