"""The parts of a training step and of a generation."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("forward_ms", "backward_ms", "optimizer_ms", "prefill_ms", "decode_ms"):
        op.add_column("results", sa.Column(name, sa.Double(), nullable=True))
