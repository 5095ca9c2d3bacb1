"""Instructions per call of both sides."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for side in ("eager", "backend"):
        op.add_column("results", sa.Column(f"{side}_instructions", sa.BigInteger(), nullable=True))
