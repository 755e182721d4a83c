"""Roles of machines, advice, and rows that were given up.

Revision ID: 0003
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"


def upgrade():
    # Machines there are were all launched for workers; new ones always say.
    op.add_column("vms", sa.Column("role", sa.Text(), nullable=False, server_default="worker"))
    op.alter_column("vms", "role", server_default=None)
    op.create_check_constraint(op.f("ck_vms_role_known"), "vms", "role IN ('worker', 'server')")
    op.add_column("outcomes", sa.Column("advised", postgresql.JSONB()))
    op.add_column("outcomes", sa.Column("advice", sa.Text()))
    op.add_column(
        "workers", sa.Column("dropped", sa.BigInteger(), nullable=False, server_default="0")
    )
    op.alter_column("workers", "dropped", server_default=None)


def downgrade():
    op.drop_column("workers", "dropped")
    op.drop_column("outcomes", "advice")
    op.drop_column("outcomes", "advised")
    op.drop_constraint(op.f("ck_vms_role_known"), "vms")
    op.drop_column("vms", "role")
