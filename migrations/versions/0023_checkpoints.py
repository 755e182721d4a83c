"""Checkpoints in buckets.

Revision ID: 0023
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0023"
down_revision = "0022"


def upgrade():
    op.create_table(
        "checkpoints",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("cloud", sa.Text(), nullable=False),
        sa.Column("bucket", sa.Text(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("iteration", sa.BigInteger(), nullable=False),
        sa.Column("parts", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("keep_until", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "state IN ('unfinished', 'complete', 'doomed')",
            name=op.f("ck_checkpoints_state_known"),
        ),
        sa.ForeignKeyConstraint(
            ["job"], ["jobs.id"], name=op.f("fk_checkpoints_job"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job", "id", name=op.f("pk_checkpoints")),
    )
    op.create_index(
        op.f("ix_checkpoints_keep_until"),
        "checkpoints",
        ["keep_until"],
        postgresql_where=sa.text("state <> 'complete'"),
    )


def downgrade():
    op.drop_table("checkpoints")
