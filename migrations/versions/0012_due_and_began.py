"""When a job's target should be reached, as foreseen; and when a machine was first asked for.

Revision ID: 0012
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

NAMES = ("due_from", "due_until")


def upgrade():
    op.add_column("vms", sa.Column("began_at", sa.DateTime(timezone=True), nullable=True))
    for name in NAMES:
        op.add_column("outcomes", sa.Column(name, sa.DateTime(timezone=True), nullable=True))


def downgrade():
    op.drop_column("vms", "began_at")
    for name in NAMES:
        op.drop_column("outcomes", name)
