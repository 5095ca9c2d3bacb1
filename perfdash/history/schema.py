"""The tables of the history, as the newest migration leaves them."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from perfdash.history.compression import CompressedJson
from perfdash.metrics import NUMBERS

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)
# SQLite assigns ids only to a key of type INTEGER.
Key = BigInteger().with_variant(Integer, "sqlite")

hosts = Table(
    "hosts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
)
# Only runs of one testbed are compared: same host class, same settings of the measurement.
testbeds = Table(
    "testbeds",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("digest", String(64), nullable=False, unique=True),
    Column("host_class", Text, nullable=False),
    Column("setting", JSON, nullable=False),
)
environments = Table(
    "environments",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("fingerprint", String(64), nullable=False, unique=True),
    Column("torch", Text),
    Column("torch_git_version", Text),
    Column("python", Text),
    Column("packages", JSON, nullable=False),
    Column("facts", JSON, nullable=False),
    Column("commits", JSON),  # of packages from a repository; NULL: stored before migration 0002
)
runs = Table(
    "runs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("key", String(64), nullable=False, unique=True),
    Column("content", String(64), nullable=False),  # digest of the run and its results
    Column("name", Text, nullable=False, index=True),
    Column("started", Text, nullable=False, index=True),  # UTC, ISO 8601: sorts as text
    Column("ended", Text),
    Column("state", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("host_id", ForeignKey("hosts.id"), nullable=False),
    Column("testbed_id", ForeignKey("testbeds.id"), nullable=False),
    Column("environment_id", ForeignKey("environments.id"), nullable=False),
    Column("command", JSON, nullable=False),
    Column("noise", JSON, nullable=False),
    Column("expected", Integer),
    Column("results", Integer, nullable=False),
    Column("perfdash", Text),
    Column("imported", JSON, nullable=False),  # results.RunRow.imported
    Column("taken_in", Text, nullable=False),
    Column("method", JSON),  # of its records, a version per metric; NULL: version 1 of each
    Column("judged", Text),  # when perfdash.detect judged it
    Column("excluded", Text),  # why a person excluded it from judging; NULL: it is judged
    Index(None, "testbed_id", "started"),
)
cases = Table(
    "cases",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("digest", String(64), nullable=False, unique=True),
    Column("suite", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("device", Text, nullable=False),
    Column("dtype", Text, nullable=False),
    Column("batch_size", Integer, nullable=False),
    Column("threads", Integer, nullable=False),
    Column("scenario", Text, nullable=False),
    Column("backend", Text, nullable=False),
    Column("dynamic", Boolean, nullable=False),
    Column("amp_dtype", Text),
    Column(
        "settings", Text, nullable=False, server_default=""
    ),  # records.Case.settings, a part of the digest
    Column("configuration", Text, nullable=False, server_default="default"),  # its name, as measured last
    Index(None, "suite", "model"),
)
results = Table(
    "results",
    metadata,
    Column("id", Key, primary_key=True, autoincrement=True),
    Column("run_id", ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    Column("case_id", ForeignKey("cases.id"), nullable=False),
    Column("status", Text, nullable=False),
    Column("started", Text),
    Column("verdict", Text),
    Column("basis", Text),
    *(Column(name, BigInteger if metric.is_integer else Double) for name, metric in NUMBERS.items()),
    UniqueConstraint("run_id", "case_id"),
    Index(None, "case_id", "run_id"),
)
# The machine of each result of a run that several machines measured.
result_hosts = Table(
    "result_hosts",
    metadata,
    Column("result_id", ForeignKey("results.id", ondelete="CASCADE"), primary_key=True),
    Column("host_id", ForeignKey("hosts.id"), nullable=False),
)
# Large values, in a table of their own so that scans of `results` stay fast; history.compression packs them.
result_details = Table(
    "result_details",
    metadata,
    Column("result_id", ForeignKey("results.id", ondelete="CASCADE"), primary_key=True),
    Column("details", CompressedJson, nullable=False),
    Column("samples", LargeBinary),
)
# What compiling produced, compressed: every text once, under the SHA-256 of its content.
texts = Table(
    "texts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("digest", String(64), nullable=False, unique=True),
    Column("data", LargeBinary, nullable=False),
)
# The structure of a result, and its generated code by file name.
result_texts = Table(
    "result_texts",
    metadata,
    Column("result_id", ForeignKey("results.id", ondelete="CASCADE"), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("text_id", ForeignKey("texts.id"), nullable=False, index=True),
    sqlite_with_rowid=False,
)
# Metrics of foreign benchmarks that have no column.
other_metrics = Table(
    "other_metrics",
    metadata,
    Column("result_id", ForeignKey("results.id", ondelete="CASCADE"), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("value", Double, nullable=False),
)
# A row for each run, suite and setting, computed when the run is stored, so that trends are only read.
summaries = Table(
    "summaries",
    metadata,
    Column("run_id", ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("suite", Text, primary_key=True),
    Column("device", Text, primary_key=True),
    Column("dtype", Text, primary_key=True),
    Column("threads", Integer, primary_key=True),
    Column("scenario", Text, primary_key=True),
    Column("backend", Text, primary_key=True),
    Column("dynamic", Boolean, primary_key=True),
    Column("settings", Text, primary_key=True, server_default=""),
    Column("configuration", Text, nullable=False, server_default="default"),
    Column("cases", Integer, nullable=False),
    Column("attempted", Integer, nullable=False),  # as pass_rates_and_means.Summary has it
    Column("passed", Integer, nullable=False),
    Column("measured", Integer, nullable=False),  # values in the means
    Column("speedup", Double),  # geometric mean
    Column("speedup_low", Double),
    Column("speedup_high", Double),
    Column("speedup_clipped", Double),
    Column("compilation_s", Double),  # arithmetic mean
    Column("compression_ratio", Double),  # geometric mean
    Column("compression_ratio_arithmetic", Double),
    Column("statuses", JSON, nullable=False),  # {status: number of cases}
)
alerts = Table(
    "alerts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("kind", Text, nullable=False),  # metric | count | status | vanished | host
    Column("testbed_id", ForeignKey("testbeds.id"), nullable=False),
    Column("case_id", ForeignKey("cases.id")),  # NULL: the host
    Column("metric", Text),
    Column("state", Text, nullable=False),
    Column("direction", SmallInteger, nullable=False),  # 1 worse, -1 better, 0 neither
    Column("good_run_id", ForeignKey("runs.id", ondelete="SET NULL")),  # the last run before the change
    Column("bad_run_id", ForeignKey("runs.id", ondelete="SET NULL")),  # the first run with the change
    Column("seen_run_id", ForeignKey("runs.id", ondelete="SET NULL")),  # the last run with the change
    Column("opened", Text, nullable=False),
    Column("changed", Text, nullable=False),
    Column("before", Double),
    Column("after", Double),
    Column("change", Double),  # log ratio after / before
    Column("p", Double),
    Column("details", JSON, nullable=False),
    # What its issue names of it: the digest of its testbed before migration 0013 moved it, or `series X` if
    # migration 0008 changed its case, too (X: as in the marker). NULL: neither did.
    Column("former_testbed", String(64)),
    Index(None, "testbed_id", "state"),
)
alert_events = Table(
    "alert_events",
    metadata,
    Column("id", Key, primary_key=True, autoincrement=True),
    Column("alert_id", ForeignKey("alerts.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("at", Text, nullable=False),
    Column("state", Text, nullable=False),  # the new state
    Column("run_id", ForeignKey("runs.id", ondelete="SET NULL")),
    Column("note", Text),
)
# What people did to the history and its alerts.
acts = Table(
    "acts",
    metadata,
    Column("id", Key, primary_key=True, autoincrement=True),
    Column("at", Text, nullable=False),  # UTC, ISO 8601
    Column("who", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("act", Text, nullable=False),  # history.acts lists them
    Column("subject", Text, nullable=False),  # the run's name then, or `alert N`
    Column("why", Text),
    Column("testbed_id", ForeignKey("testbeds.id")),
    Column("run_id", ForeignKey("runs.id", ondelete="SET NULL"), index=True),
    Column("alert_id", ForeignKey("alerts.id", ondelete="SET NULL"), index=True),
    Column("details", JSON, nullable=False),
)
# Starts and ends of nightlies, so that a missing one is noticed.
nightlies = Table(
    "nightlies",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("job", Text, nullable=False),  # several jobs may share a store
    Column("night", Text, nullable=False),  # unique within the job
    Column("begun", Text, nullable=False),
    Column("ended", Text),
    Column("every_s", Integer, nullable=False),
    Column("grace_s", Integer, nullable=False),
    Column("state", Text, nullable=False),  # running | ok | partial | failed
    Column("why", Text),
    Column("expected", JSON, nullable=False),  # settings to measure: "suite device dtype [threads]"
    Column("runs", JSON, nullable=False),  # names of its runs
    UniqueConstraint("job", "night"),
)
bisections = Table(
    "bisections",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("alert_id", ForeignKey("alerts.id", ondelete="SET NULL")),
    Column("started", Text, nullable=False),
    Column("ended", Text),
    Column("state", Text, nullable=False),
    Column("good", Text, nullable=False),
    Column("bad", Text, nullable=False),
    Column("culprit", Text),
    Column("details", JSON, nullable=False),
)
