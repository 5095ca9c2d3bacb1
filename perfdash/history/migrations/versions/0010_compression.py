"""Details of results as compressed JSON, samples in steps, texts under numbers instead of digests.

Writes what history.compression packs; a later change of that needs a migration that reads this form.
"""

import json
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import sqlalchemy as sa
from alembic import op

from perfdash.history.compression import pack, packed_json

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_AT_ONCE = 2000
_details = sa.table(
    "result_details", sa.column("result_id"), sa.column("details", sa.JSON), sa.column("samples"),
    sa.column("packed", sa.LargeBinary),
)  # fmt: skip


def upgrade() -> None:
    connection = op.get_bind()
    of_sqlite = connection.dialect.name == "sqlite"
    binary = "BLOB" if of_sqlite else "bytea"
    # SQLite adds a column without a default only where it may be null; the default is never used.
    op.execute(f"alter table result_details add column packed {binary} not null default ''")
    change = (
        sa.update(_details)
        .where(_details.c.result_id == sa.bindparam("number"))
        .values(packed=sa.bindparam("text"), samples=sa.bindparam("blob"))
    )
    for rows in _chunks(connection):
        values = [
            {
                "number": row.result_id,
                "text": packed_json(row.details),
                "blob": pack(_unpacked(bytes(row.samples))) if row.samples else None,
            }
            for row in rows
        ]
        connection.execute(change, values)
    op.execute("alter table result_details drop column details")
    op.execute("alter table result_details rename column packed to details")
    if not of_sqlite:
        op.execute("alter table result_details alter column details drop default")
    _number_texts()


def _chunks(connection: sa.Connection) -> Iterator[Any]:
    last = -1
    while True:
        query = sa.select(_details.c.result_id, _details.c.details, _details.c.samples)
        query = query.where(_details.c.result_id > last).order_by(_details.c.result_id).limit(_AT_ONCE)
        rows = connection.execute(query).all()
        if not rows:
            return
        last = rows[-1].result_id
        yield rows


def _unpacked(blob: bytes) -> dict[str, list[float]]:
    """Samples as they were stored before: 32-bit floats behind their counts by name."""
    data = zlib.decompress(blob)
    size = int.from_bytes(data[:4], "little")
    counts = json.loads(data[4 : 4 + size])
    parts = np.split(np.frombuffer(data[4 + size :], "<f4"), np.cumsum(list(counts.values()))[:-1])
    return {name: part.tolist() for name, part in zip(counts, parts, strict=True)}


def _number_texts() -> None:
    op.create_table(
        "texts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_texts"),
        sa.UniqueConstraint("digest", name="uq_texts_digest"),
    )
    op.create_table(
        "result_texts",
        sa.Column("result_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("text_id", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("result_id", "name", name="pk_result_texts"),
        sa.ForeignKeyConstraint(
            ["result_id"], ["results.id"], name="fk_result_texts_result_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["text_id"], ["texts.id"], name="fk_result_texts_text_id"),
        sqlite_with_rowid=False,
    )
    op.execute("insert into texts (digest, data) select digest, data from artifacts order by digest")
    op.execute(
        "insert into result_texts (result_id, name, text_id) select result_id, name, texts.id "
        "from result_artifacts join texts on texts.digest = result_artifacts.digest"
    )
    op.create_index("ix_result_texts_text_id", "result_texts", ["text_id"])
    op.drop_table("result_artifacts")
    op.drop_table("artifacts")
