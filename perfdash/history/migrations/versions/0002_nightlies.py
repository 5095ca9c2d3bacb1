"""Nightlies that tell of themselves; commits of installed packages."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "nightlies",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("night", sa.Text(), nullable=False),
        sa.Column("begun", sa.Text(), nullable=False),
        sa.Column("ended", sa.Text(), nullable=True),
        sa.Column("every_s", sa.Integer(), nullable=False),
        sa.Column("grace_s", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=True),
        sa.Column("expected", sa.JSON(), nullable=False),
        sa.Column("runs", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_nightlies")),
        sa.UniqueConstraint("job", "night", name=op.f("uq_nightlies_job_night")),
    )
    op.add_column("environments", sa.Column("commits", sa.JSON(), nullable=True))
