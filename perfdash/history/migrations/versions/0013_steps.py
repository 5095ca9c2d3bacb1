"""What a suite sets of a case's step, a part of its identity; empty for the cases until then."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("cases", sa.Column("step", sa.Text(), nullable=False, server_default=""))
