"""Whose machines are ours, and what sweeps found.

Revision ID: 0005
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"


def upgrade():
    op.create_table(
        "installations",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.CheckConstraint("number = 1", name=op.f("ck_installations_only_one")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_installations")),
    )
    op.create_table(
        "epochs",
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("launches", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("token", name=op.f("pk_epochs")),
    )
    op.create_table(
        "sweeps",
        sa.Column("number", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("shown", sa.Integer()),
        sa.Column("suspects", postgresql.JSONB()),
        sa.Column("ended", sa.Integer(), nullable=False),
        sa.Column("tripped", sa.Text()),
        sa.Column("confirmed_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_sweeps")),
    )


def downgrade():
    op.drop_table("sweeps")
    op.drop_table("epochs")
    op.drop_table("installations")
