"""Webhooks and their deliveries.

Revision ID: 0027
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0027"
down_revision = "0026"


def upgrade():
    op.create_table(
        "webhooks",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("events", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("enabled_at", sa.DateTime(timezone=True)),
        sa.Column("rotations", sa.Integer(), nullable=False),
        sa.Column("rotated_at", sa.DateTime(timezone=True)),
        sa.Column("failing_since", sa.DateTime(timezone=True)),
        sa.Column("gave_up_at", sa.DateTime(timezone=True)),
        sa.Column("gave_up_why", sa.Text()),
        sa.Column("seen", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("kind IN ('generic', 'slack')", name=op.f("ck_webhooks_kind_known")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhooks")),
    )
    op.create_table(
        "deliveries",
        sa.Column("number", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("webhook", sa.Text(), nullable=False),
        sa.Column("event", sa.BigInteger()),
        sa.Column("replay_of", sa.BigInteger()),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_try_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("status", sa.Integer()),
        sa.Column("told", sa.Text()),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint(
            "state IN ('waiting', 'delivered', 'failed')", name=op.f("ck_deliveries_state_known")
        ),
        sa.ForeignKeyConstraint(
            ["webhook"], ["webhooks.id"], name=op.f("fk_deliveries_webhook"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_deliveries")),
    )
    op.create_index(op.f("ix_deliveries_webhook_deliveries_number"), "deliveries", ["webhook", "number"])
    op.create_index(
        "uq_deliveries_webhook_event",
        "deliveries",
        ["webhook", "event"],
        unique=True,
        postgresql_where=sa.text("replay_of IS NULL"),
    )
    op.create_index(
        op.f("ix_deliveries_next_try_at"),
        "deliveries",
        ["next_try_at"],
        postgresql_where=sa.text("state = 'waiting'"),
    )


def downgrade():
    op.drop_table("deliveries")
    op.drop_table("webhooks")
