"""What people did to the history and its alerts, and which runs they excluded from judging."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("excluded", sa.Text(), nullable=True))
    op.create_table(
        "acts",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("at", sa.Text(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("act", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=True),
        sa.Column("testbed_id", sa.Integer(), nullable=True),
        sa.Column("run_id", sa.Integer(), nullable=True),
        sa.Column("alert_id", sa.Integer(), nullable=True),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_acts"),
        sa.ForeignKeyConstraint(["testbed_id"], ["testbeds.id"], name="fk_acts_testbed_id"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_acts_run_id", ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["alert_id"], ["alerts.id"], name="fk_acts_alert_id", ondelete="SET NULL"),
    )
    op.create_index("ix_acts_run_id", "acts", ["run_id"])
    op.create_index("ix_acts_alert_id", "acts", ["alert_id"])
