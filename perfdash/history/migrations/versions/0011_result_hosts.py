"""The machine of each result of a run that several machines measured."""

from itertools import groupby

import sqlalchemy as sa
from alembic import op

from perfdash.history.compression import unpacked_json

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_AT_ONCE = 10
_hosts = sa.table("hosts", sa.column("id"), sa.column("name"))
_runs = sa.table("runs", sa.column("id"), sa.column("host_id"), sa.column("origin"))
_results = sa.table("results", sa.column("id"), sa.column("run_id"))
_details = sa.table("result_details", sa.column("result_id"), sa.column("details", sa.LargeBinary))
_result_hosts = sa.table("result_hosts", sa.column("result_id"), sa.column("host_id"))


def upgrade() -> None:
    op.create_table(
        "result_hosts",
        sa.Column("result_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("host_id", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("result_id", name="pk_result_hosts"),
        sa.ForeignKeyConstraint(
            ["result_id"], ["results.id"], name="fk_result_hosts_result_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["host_id"], ["hosts.id"], name="fk_result_hosts_host_id"),
    )
    connection = op.get_bind()
    ids = {row.name: row.id for row in connection.execute(sa.select(_hosts.c.id, _hosts.c.name))}
    query = sa.select(_runs.c.id).where(_runs.c.origin == "perfdash").order_by(_runs.c.id)
    run_ids = list(connection.execute(query).scalars())
    for start in range(0, len(run_ids), _AT_ONCE):
        query = (
            sa.select(_results.c.run_id, _results.c.id, _details.c.details)
            .join_from(_results, _details, _details.c.result_id == _results.c.id)
            .where(_results.c.run_id.in_(run_ids[start : start + _AT_ONCE]))
            .order_by(_results.c.run_id)
        )
        for run_id, rows in groupby(connection.execute(query).all(), key=lambda row: row.run_id):
            _record(connection, run_id, {row.id: _host_of(bytes(row.details)) for row in rows}, ids)


def _host_of(details: bytes) -> str | None:
    """The machine that the conditions of a result name."""
    return (unpacked_json(details).get("conditions") or {}).get("host")


def _record(
    connection: sa.Connection, run_id: int, hosts: dict[int, str | None], ids: dict[str, int]
) -> None:
    """Give a run the name of its machines, and each result its own if they are several."""
    names = sorted({host for host in hosts.values() if host})
    if not names:
        return
    for name in (*names, "+".join(names)):
        if name not in ids:
            insert = sa.insert(_hosts).values(name=name).returning(_hosts.c.id)
            ids[name] = connection.execute(insert).scalar_one()
    of_run = sa.update(_runs).where(_runs.c.id == run_id)
    connection.execute(of_run.values(host_id=ids["+".join(names)]))
    if len(names) > 1:
        values = [{"result_id": number, "host_id": ids[host]} for number, host in hosts.items() if host]
        connection.execute(sa.insert(_result_hosts), values)
