"""Structure and generated code of results, every text once."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "artifacts",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_artifacts"),
    )
    op.create_table(
        "result_artifacts",
        sa.Column("result_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("result_id", "name", name="pk_result_artifacts"),
        sa.ForeignKeyConstraint(
            ["result_id"], ["results.id"], name="fk_result_artifacts_result_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["digest"], ["artifacts.digest"], name="fk_result_artifacts_digest"),
    )
    op.create_index("ix_result_artifacts_digest", "result_artifacts", ["digest"])
