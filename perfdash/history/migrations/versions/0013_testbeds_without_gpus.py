"""The testbed of a run on the CPU has no GPUs, and no testbed has the variable that selects GPUs.

The history of the CPU ended where a GPU was lost, and with --env CUDA_VISIBLE_DEVICES each GPU had a testbed.
The runs move with their alerts and acts.
"""

import hashlib
from typing import Any

import sqlalchemy as sa
from alembic import op

from perfdash.files import dumps

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_LEVEL = "baseline"  # the act of accepting a level
_SELECTS_GPUS = "CUDA_VISIBLE_DEVICES"
_OPTIONS_OF_CASES = {
    "bind_memory", "compile_mode", "env", "inductor_config", "optimizer", "sizes", "sizes_of", "tf32",
}  # fmt: skip
# What the shipped configurations set beside the fields of a case when this migration was written.
_CONFIGURATIONS = (
    {"inductor_config": {"cpp_wrapper": True}}, {"inductor_config": {"freezing": True}},
    {"inductor_config": {"triton.cudagraphs": True}}, {"sizes_of": "batch"},
)  # fmt: skip
_testbeds = sa.table(
    "testbeds", sa.column("id"), sa.column("digest"), sa.column("host_class"), sa.column("setting", sa.JSON)
)
_runs = sa.table("runs", sa.column("id"), sa.column("testbed_id"), sa.column("imported", sa.JSON))
_results = sa.table("results", sa.column("run_id"), sa.column("case_id"))
_cases = sa.table("cases", sa.column("id"), sa.column("digest"), sa.column("device"))
_alerts = sa.table(
    "alerts", sa.column("id"), sa.column("testbed_id"), sa.column("case_id"), sa.column("bad_run_id"),
    sa.column("seen_run_id"), sa.column("good_run_id"), sa.column("former_testbed"),
)  # fmt: skip
_acts = sa.table(
    "acts", sa.column("id"), sa.column("at"), sa.column("who"), sa.column("host"), sa.column("act"),
    sa.column("subject"), sa.column("why"), sa.column("testbed_id"), sa.column("run_id"),
    sa.column("alert_id"), sa.column("details", sa.JSON),
)  # fmt: skip


def upgrade() -> None:
    connection = op.get_bind()
    # Migration 0008 adds the column, but did not in each development version.
    if "former_testbed" not in {column["name"] for column in sa.inspect(connection).get_columns("alerts")}:
        op.add_column("alerts", sa.Column("former_testbed", sa.String(64)))
    for bed in connection.execute(sa.select(_testbeds)).all():
        setting = dict(bed.setting)
        if _SELECTS_GPUS not in setting.get("env", {}):
            continue
        env = {name: value for name, value in setting.pop("env").items() if name != _SELECTS_GPUS}
        setting |= {"env": env} if env else {}
        # Runs whose other options equal a configuration have other cases now: such testbeds stay.
        if {name: setting[name] for name in setting.keys() & _OPTIONS_OF_CASES} not in _CONFIGURATIONS:
            _move(connection, bed, setting, only_cpu=False)
    for bed in connection.execute(sa.select(_testbeds)).all():
        if "gpus" in bed.setting:
            setting = {name: value for name, value in bed.setting.items() if name != "gpus"}
            _move(connection, bed, setting, only_cpu=True)


def _move(connection: sa.Connection, bed: Any, setting: dict[str, Any], only_cpu: bool) -> None:
    """Move the runs of a testbed, or `only_cpu` those on the CPU, to the testbed with another setting."""
    in_bed = _runs.c.testbed_id == bed.id
    on_cpu, on_gpu = _runs_of(_cases.c.device == "cpu"), _runs_of(_cases.c.device != "cpu")

    def has_run(of_device: sa.ColumnElement[bool]) -> bool:
        return connection.execute(sa.select(_runs.c.id).where(in_bed, of_device).limit(1)).first() is not None

    if only_cpu and not has_run(_runs.c.id.in_(on_cpu)):
        return
    is_whole = not (only_cpu and has_run(_runs.c.id.in_(on_gpu)))
    digest = _digest([bed.host_class, setting])
    query = sa.select(_testbeds.c.id).where(_testbeds.c.digest == digest)
    target = connection.execute(query).scalar()
    # The marker of an alert's issue has the digest of its testbed. Another would close it and open a new one.
    former = {"former_testbed": sa.func.coalesce(_alerts.c.former_testbed, bed.digest)}
    if target is None and is_whole:
        of_bed = sa.update(_testbeds).where(_testbeds.c.id == bed.id)
        connection.execute(of_bed.values(digest=digest, setting=setting))
        connection.execute(sa.update(_alerts).where(_alerts.c.testbed_id == bed.id).values(former))
        return
    if target is None:
        values = {"digest": digest, "host_class": bed.host_class, "setting": setting}
        connection.execute(sa.insert(_testbeds).values(values))
        target = connection.execute(query).scalar_one()
    first_run = sa.func.coalesce(_alerts.c.bad_run_id, _alerts.c.seen_run_id, _alerts.c.good_run_id)
    alerted = sa.or_(
        _alerts.c.case_id.in_(sa.select(_cases.c.id).where(_cases.c.device == "cpu")),
        sa.and_(_alerts.c.case_id.is_(None), first_run.in_(on_cpu)),  # of the host
    )
    if not is_whole:
        _share_levels(connection, bed.id, target)
    in_target = sa.select(_alerts.c.id).where(_alerts.c.testbed_id == target)
    acted = sa.or_(_acts.c.run_id.in_(on_cpu), _acts.c.alert_id.in_(in_target))
    # An act on an alert may name its testbed, too: the alerts go first, and the runs last.
    for table, moved, values in (
        (_alerts, alerted, former),
        (_acts, sa.and_(_acts.c.act != _LEVEL, acted), {}),
        (_runs, _runs.c.id.in_(on_cpu), {}),
    ):
        of_bed = sa.update(table).where(table.c.testbed_id == bed.id).values(testbed_id=target, **values)
        connection.execute(of_bed if is_whole else of_bed.where(moved))
    _move_marks(connection, bed.id, target, None if is_whole else _runs.c.id.in_(on_cpu))
    if is_whole:
        connection.execute(sa.delete(_testbeds).where(_testbeds.c.id == bed.id))


def _runs_of(of_device: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """The ids of runs that have a result of such a case."""
    return sa.select(_results.c.run_id).join_from(_results, _cases, _results.c.case_id == _cases.c.id).where(
        of_device
    )  # fmt: skip


def _share_levels(connection: sa.Connection, old: int, new: int) -> None:
    """A level that a person accepted for one case goes with it; by patterns it holds for the CPU and the GPU.

    So the testbed without GPUs gets a copy of the latter.
    """
    levels = sa.select(_acts).where(_acts.c.testbed_id == old, _acts.c.act == _LEVEL).order_by(_acts.c.id)
    for act in connection.execute(levels).all():
        if "case" not in act.details:
            copy = {name: value for name, value in act._mapping.items() if name != "id"}
            connection.execute(sa.insert(_acts).values({**copy, "testbed_id": new}))
            continue
        device = sa.select(_cases.c.device).where(_cases.c.digest == act.details["case"])
        if connection.execute(device).scalar() == "cpu":
            connection.execute(sa.update(_acts).where(_acts.c.id == act.id).values(testbed_id=new))


def _move_marks(
    connection: sa.Connection, old: int, new: int, of_runs: sa.ColumnElement[bool] | None
) -> None:
    """A run that was replaced after it was judged names the testbed whose alerts are to be judged again.

    It may be on a third testbed since then. `of_runs`: which runs; None: all.
    """
    query = sa.select(_runs.c.id, _runs.c.imported)
    marked = query.where(_runs.c.imported.cast(sa.Text).contains('"judged_as"'))
    marked = marked if of_runs is None else marked.where(of_runs)
    for run_id, imported in connection.execute(marked).all():
        marks = [[new if bed == old else bed, started] for bed, started in imported.get("judged_as", [])]
        of_run = sa.update(_runs).where(_runs.c.id == run_id)
        connection.execute(of_run.values(imported={**imported, "judged_as": marks}))


def _digest(value: Any) -> str:
    text = dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
