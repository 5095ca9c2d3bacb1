"""The warm compilation latency, and recompiles."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("results", sa.Column("warm_compilation_s", sa.Double(), nullable=True))
    op.add_column("results", sa.Column("recompiles", sa.BigInteger(), nullable=True))
