"""Open the store, a SQLite file or a PostgreSQL database; create or migrate its tables."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from perfdash.errors import MachineError, UsageError
from perfdash.files import dumps, replaced
from perfdash.history.schema import metadata
from perfdash.redaction import remember

# The newest migration. A test compares it with the files; a store that is at HEAD opens without Alembic.
HEAD = "0014"
VERSION_TABLE = "perfdash_version"  # not Alembic's default, which other programs may use here
# PostgreSQL: the advisory lock that writers and migrations take.
WRITERS = 7270683
_BUSY_S = 300.0  # eight writers of large nights on one busy core wait over a minute for each other
# PostgreSQL ends the transaction of a writer that sends nothing for so long: it was stopped, or its host or
# network failed. Shorter than the next writer waits. Between two statements perfdash computes for seconds.
_IDLE_S = 240.0
# A connection on which nothing arrives ends after two minutes instead of the two hours of most systems.
_KEEPALIVES = {"keepalives_idle": 60, "keepalives_interval": 20, "keepalives_count": 3}
_LOCK_NOT_AVAILABLE = "55P03"  # SQLSTATE
_NO_RIGHT, _READ_ONLY_SERVER = "42501", "25006"
_CONNECT_S = 10
_GLANCE_S = 3.0
_A_FOLDER = "--db {}: it is a folder; give a file, or a postgresql:// address"


class NoHistory(UsageError):
    """The history does not exist yet."""


class ReadOnlyHistory(MachineError):
    """This user may only read the history."""


class BrokenHistory(MachineError):
    """The file of the history is damaged, so nothing can be written to it."""

    @classmethod
    def of(cls, shown: str, reason: str) -> BrokenHistory:
        """The error for a file, with the reason that the database gave."""
        return cls(
            f"the history {shown} is damaged ({reason}): move it away, and take the runs, which stay in "
            f"their folders, in again: perfdash history import FOLDER... --db {shlex.quote(shown)}"
        )


class Store:
    """The history, which many processes may have open. `write()` is one transaction."""

    def __init__(self, engine: sa.Engine, shown: str) -> None:
        self.engine = engine
        self.shown = shown  # the address without its password

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    @contextlib.contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A connection that sees one snapshot of the database. Raises MachineError if it fails."""
        with self._failures("read"), self.engine.connect() as connection:
            if self.is_sqlite:
                connection.exec_driver_sql("BEGIN")
            else:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """A transaction. If the database fails, MachineError is raised and nothing is written."""
        with self._failures("written"), self.engine.begin() as connection:
            if not self.is_sqlite:  # one writer at a time, as with SQLite; storing a run takes about a second
                connection.execute(sa.text(f"set local lock_timeout = '{int(_BUSY_S)}s'"))
            try:
                # Take the write lock now: SQLite fails, without waiting, when a reader turns into a writer.
                _lock(self, connection)
            except DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
                    raise
                raise MachineError(
                    f"the history {self.shown} cannot be written: after a wait of {_BUSY_S:.0f} s "
                    f"{self._writer()} is still writing; repeat the command later (runs stay in their "
                    "folders, and `perfdash history import FOLDER` takes them in again)"
                ) from error
            yield connection

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[sa.Connection]:
        """A connection outside any transaction, for statements such as VACUUM."""
        with self._failures("written"), self.engine.connect() as connection:
            yield connection.execution_options(isolation_level="AUTOCOMMIT")

    def close(self) -> None:
        self.engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _writer(self) -> str:
        """Who writes to a PostgreSQL database now, in words: program, host, and the server's process."""
        query = sa.text(
            "select a.application_name, a.pid, extract(epoch from now() - a.xact_start) from pg_locks l "
            "join pg_stat_activity a on a.pid = l.pid join pg_database d on d.oid = l.database "
            "where l.locktype = 'advisory' and l.granted and l.objid = :writers "
            "and d.datname = current_database()"
        )
        with self.engine.connect() as connection:
            row = connection.execute(query, {"writers": WRITERS}).first()
        if row is None:
            return "another writer"
        program, process, seconds = row  # of another user's writer the server gives the process only
        since = "" if seconds is None else f"; began {seconds:.0f} s ago"
        return f"another writer ({program or 'unknown program'}; process {process} of the server{since})"

    @contextlib.contextmanager
    def _failures(self, action: str) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            if _is_damage(brief(error)):
                raise BrokenHistory.of(self.shown, brief(error)) from error
            if action == "written" and _is_refused(error):
                raise ReadOnlyHistory(
                    f"the history {self.shown} cannot be written: you may only read it"
                ) from error
            raise MachineError(
                f"the history {self.shown} cannot be {action}: {brief(error)}; runs stay in their folders, "
                "and `perfdash history import FOLDER` takes them in again"
            ) from error
        except SQLAlchemyError as error:
            raise MachineError(f"the history {self.shown} cannot be {action}: {error}") from error


def brief(error: DBAPIError) -> str:
    """The first line of a database error, without statement, values or password."""
    error_lines = str(error.orig).strip().splitlines() or [type(error.orig).__name__]
    return re.sub(r"(?i)(password\s*[=:]\s*)\S+", r"\1***", error_lines[0])


def _is_refused(error: DBAPIError) -> bool:
    """Whether a write failed because this user may only read."""
    if (code := getattr(error.orig, "sqlstate", None)) is not None:
        return code in (_NO_RIGHT, _READ_ONLY_SERVER)
    return "readonly database" in brief(error)


def _is_damage(message: str) -> bool:
    return "malformed" in message


def open_store(address: str, *, create: bool = True) -> Store:
    """A store by address: a path, `sqlite:///path`, or `postgresql://user@host/name`.

    Its tables are created or migrated; a SQLite file is backed up before a migration. Raises UsageError for
    a wrong address, a foreign database, and a store of a newer perfdash; MachineError if the store cannot be
    reached or written.
    """
    url = _url(address)
    remember(url.password)
    if url.get_backend_name() == "sqlite":
        path = Path(str(url.database))
        if not create and not path.exists():
            raise NoHistory(f"there is no history {path} yet; `perfdash run` makes it, or history import")
        if path.is_dir():
            raise UsageError(_A_FOLDER.format(path))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MachineError(f"--db {path}: {error.strerror}") from error

    def prepare(store: Store, revision: str | None) -> None:
        if revision is None and not create:
            raise NoHistory(
                f"there is no history in {store.shown} yet; `perfdash run` makes it, or history import"
            )
        if revision is None:
            _make(store)
        elif revision != HEAD:
            _migrate(store, revision)

    return _connected(url, prepare)


def open_for_a_glance(address: str) -> Store:
    """The store, for a question without whose answer a command goes on, such as `perfdash show last`.

    It is neither made nor migrated, and neither a lock nor a server that is away is waited for long. Raises
    NoHistory where there is none, else what open_store raises. Reading from an older store may fail.
    """
    url = _url(address)
    remember(url.password)
    if url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
        raise NoHistory(f"there is no history {url.database} yet")

    def prepare(store: Store, revision: str | None) -> None:
        if revision is None:
            raise NoHistory(f"there is no history in {store.shown} yet")

    return _connected(url, prepare, _GLANCE_S)


def check_writable(address: str) -> None:
    """Raise the error that writing to this history would raise, without changing it."""
    url = _url(address)
    remember(url.password)
    if url.get_backend_name() == "sqlite":
        path = Path(str(url.database))
        if path.is_dir():
            raise UsageError(_A_FOLDER.format(path))
        if not path.exists():
            folder = next(parent for parent in path.absolute().parents if parent.exists())
            if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
                raise MachineError(f"--db {path}: no file can be made in {folder}")
            return
        if not _may_be_written(path):
            raise MachineError(f"--db {path}: it cannot be written, or no file can be made beside it")
    _connected(url, _try_to_write).close()


def _try_to_write(store: Store, revision: str | None) -> None:
    """Raise MachineError if the database is read-only for this user."""
    with store.write() as connection:
        if store.is_sqlite:
            return
        right = (
            "has_schema_privilege(current_schema(), 'CREATE')"
            if revision is None
            else "has_table_privilege('results', 'INSERT')"
        )
        read_only = connection.execute(sa.text("select current_setting('transaction_read_only')")).scalar()
        if read_only == "on" or not connection.execute(sa.text(f"select {right}")).scalar():
            raise MachineError(f"--db {store.shown}: it is read-only for this user")


def _connected(
    url: sa.URL, prepare: Callable[[Store, str | None], None], wait_s: float | None = None
) -> Store:
    """Open the store and call `prepare` with it and its revision. `wait_s`: for whatever it waits for."""
    if url.get_backend_name() == "sqlite":
        shown = str(url.database)  # not rendered: the name of a file need not be text
    else:  # both the user part and the query of an address may hold a password
        shown = url.set(query={}).render_as_string(hide_password=True)
    store = Store(_engine(url, wait_s), shown)
    try:
        prepare(store, _revision(store))
    except BaseException as error:
        store.close()
        if not isinstance(error, DBAPIError):
            raise
        message = brief(error)
        if _is_damage(message):
            raise BrokenHistory.of(shown, message) from error
        if "not a database" in message:
            raise UsageError(
                f"--db {shown}: it is no SQLite database ({message}); give another file"
            ) from error
        raise MachineError(f"the history {shown} cannot be opened: {message}") from error
    return store


def _url(address: str) -> sa.URL:
    """Parse an address. Raises UsageError, whose message never shows the password."""
    if "://" not in address:
        return sa.URL.create("sqlite", database=address)
    try:
        url = sa.make_url(address)
    except (SQLAlchemyError, ValueError):
        raise UsageError(
            "--db (PERFDASH_DB) is no address of a database; give a file or postgresql://USER@HOST/NAME"
        ) from None
    backend = url.get_backend_name()
    if backend in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise UsageError(f"--db: {backend} is not known; give an SQLite file or a postgresql:// address")
    if not url.database or url.database == ":memory:":
        raise UsageError("--db: sqlite:///PATH needs a path; a history in memory is lost at once")
    return url


def _engine(url: sa.URL, wait_s: float | None) -> sa.Engine:
    if url.get_backend_name() == "sqlite":
        path, busy_s = Path(str(url.database)), wait_s or _BUSY_S
        engine = sa.create_engine(url, connect_args={"timeout": busy_s}, json_serializer=dumps)
        if path.exists() and not _may_be_written(path):
            sa.event.listen(engine, "do_connect", lambda *_: connect_to_read(path, busy_s))
        sa.event.listen(engine, "connect", lambda connection, _: _set_up_sqlite(connection, busy_s))
        return engine
    name = f"perfdash on {socket.gethostname()}, process {os.getpid()}"
    options = {"connect_timeout": int(wait_s or _CONNECT_S), **_KEEPALIVES, "fallback_application_name": name}
    if wait_s:
        options["options"] = f"-c statement_timeout={int(wait_s * 1000)}"
    own = {option: value for option, value in options.items() if option not in url.query}
    try:
        return sa.create_engine(url, connect_args=own, pool_pre_ping=True, json_serializer=dumps)
    except ImportError as error:
        raise UsageError("a PostgreSQL history needs psycopg: pip install 'psycopg[binary]'") from error


def connect_to_read(path: Path, timeout_s: float) -> sqlite3.Connection:
    """A connection to an SQLite file that writes nothing, to be used by any thread.

    WAL needs two files beside the database, even to read it. Where this user may not make them, those of a
    writer are used. If there are none, the database is complete without them, and is opened as immutable.
    """
    file = path.resolve()  # SQLite's files are beside the file that a link leads to
    log, index = (Path(f"{file}{end}") for end in ("-wal", "-shm"))
    has_both = log.exists() and index.exists()
    is_complete = not log.exists() or log.stat().st_size == 0
    immutable = "&immutable=1" if not has_both and is_complete and not _may_be_written(file) else ""
    uri = f"file:{quote(os.fsencode(file))}?mode=ro{immutable}"
    return sqlite3.connect(uri, uri=True, timeout=timeout_s, check_same_thread=False)


def _may_be_written(path: Path) -> bool:
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)


def _set_up_sqlite(connection: Any, busy_s: float) -> None:
    connection.isolation_level = None  # perfdash issues BEGIN: the driver would only before a write
    for pragma in (
        f"busy_timeout = {int(busy_s * 1000)}",
        "synchronous = FULL",  # a commit survives a power cut: what people decided is nowhere else
        "foreign_keys = ON",
        "cache_size = -65536",
    ):
        connection.execute(f"PRAGMA {pragma}")
    _write_ahead(connection, busy_s)


def _write_ahead(connection: Any, busy_s: float) -> None:
    """Let one process write while others read (WAL); a file that is read only stays as it is."""
    until = time.monotonic() + busy_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "readonly" in str(error):
                return
            # If several processes change a new file to WAL, SQLite refuses it without waiting.
            if "locked" not in str(error) or time.monotonic() > until:
                raise
        time.sleep(0.05)


def _revision(store: Store) -> str | None:
    """The store's migration; None if it is empty. Raises UsageError for a foreign database."""
    with store.engine.connect() as connection:
        tables = sa.inspect(connection).get_table_names()
        if VERSION_TABLE not in tables:
            if metadata.tables.keys() & tables or (tables and store.is_sqlite):
                raise UsageError(f"--db {store.shown}: a database of another program, no history of perfdash")
            return None
        revision = _stored_revision(connection)
    if revision is not None and (not re.fullmatch(r"\d{4}", revision) or revision > HEAD):
        raise UsageError(
            f"the history {store.shown} is of a newer perfdash (schema {revision}, this one knows {HEAD}): "
            "update perfdash"
        )
    return revision


def _stored_revision(connection: sa.Connection) -> str | None:
    revision: str | None = connection.execute(sa.text(f"select version_num from {VERSION_TABLE}")).scalar()
    return revision


def _make(store: Store) -> None:
    """Make the tables in an empty database, unless another process has just done so."""
    key = sa.PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc")  # as Alembic has it
    version = sa.Table(VERSION_TABLE, sa.MetaData(), sa.Column("version_num", sa.String(32)), key)
    with store.engine.begin() as connection:
        _lock(store, connection)
        if not sa.inspect(connection).has_table(VERSION_TABLE):
            metadata.create_all(connection)
            version.create(connection)
            connection.execute(sa.insert(version).values(version_num=HEAD))


def _lock(store: Store, connection: sa.Connection) -> None:
    """Only this transaction may write. PostgreSQL ends it when its client sends nothing for `_IDLE_S`."""
    if store.is_sqlite:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    else:
        connection.execute(sa.text(f"set local idle_in_transaction_session_timeout = '{int(_IDLE_S)}s'"))
        connection.execute(sa.text(f"select pg_advisory_xact_lock({WRITERS})"))


def _migrate(store: Store, revision: str) -> None:
    """Run all migrations that a store needs, or none.

    Raises MachineError where the disk is full, or the user may not write an SQLite file or its folder.
    """
    from alembic import command
    from alembic.config import Config

    if store.is_sqlite and not _may_be_written(Path(store.shown)):
        raise MachineError(
            f"the history {store.shown} is of an older perfdash and must be migrated, which needs write "
            "permission for the file and its folder; open it once as a user who has it, or read a copy"
        )
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    new_copy = None
    try:
        with store.engine.begin() as connection:
            if store.is_sqlite:
                # Alembic recreates tables to alter them. Dropping the old must not cascade to its references.
                connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
            _lock(store, connection)
            # Another process may have migrated the store while this one waited for the lock.
            if store.is_sqlite and _stored_revision(connection) == revision:
                new_copy = _back_up(Path(store.shown), revision)
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except DBAPIError as error:
        if not (store.is_sqlite and "disk is full" in brief(error)):
            raise
        path = Path(store.shown)
        copy = _copy_of(path, revision)
        # The file is as it was, and needs the room. A copy of another process, which may have migrated it
        # since then, stays.
        if new_copy is not None and copy.exists() and copy.stat().st_ino == new_copy:
            copy.unlink()
        raise MachineError(
            f"the history {path} cannot be migrated: {brief(error)}. It is unchanged. {_needed_room(path)}"
        ) from error
    store.engine.dispose()  # its connections have foreign keys switched off
    if store.is_sqlite:
        # Give back what the migration has freed; a full disk or a reader that stays is no failure.
        with contextlib.suppress(MachineError), store.exclusive() as connection:
            connection.exec_driver_sql("VACUUM")


def _copy_of(path: Path, revision: str) -> Path:
    return path.with_name(f"{path.name}.schema{revision}.bak")


def _needed_room(path: Path) -> str:
    """What a migration needs: its copy of the file, and the write-ahead log with all that it changes.

    The log of a large file has some pages twice: it took 0.9 to 1.3 times the size of files of 145 to 190 MB.
    """
    size = 3 * path.stat().st_size / 1e6
    return f"Make room for three times its size ({size:.0f} MB) and try again"


def _back_up(path: Path, revision: str) -> int | None:
    """Copy the file before a migration changes it. Without room for all of it nothing is left.

    Return the number (inode) of the copy; None where it replaces an earlier one.
    """
    copy = _copy_of(path, revision)
    is_new = not copy.exists()
    try:
        with (
            replaced(copy) as part,
            contextlib.closing(sqlite3.connect(path)) as source,
            contextlib.closing(sqlite3.connect(part)) as target,
        ):
            target.execute("PRAGMA journal_mode = OFF")  # a journal would stay beside a copy that failed
            source.backup(target)
        return copy.stat().st_ino if is_new else None
    except (sqlite3.Error, OSError) as error:
        # SQLite: "database or disk is full", or "disk I/O error" at a limit of the file's size.
        of_sqlite = isinstance(error, sqlite3.Error) and "disk" in str(error)
        no_room = of_sqlite or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        room = f". {_needed_room(path)}" if no_room else ""
        raise MachineError(
            f"no backup of {path} can be made ({error}), so it is not migrated{room}"
        ) from error
