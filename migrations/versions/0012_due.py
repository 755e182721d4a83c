"""Between which moments a job's target should be reached, as foreseen when its configuration was chosen.

Revision ID: 0012
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

NAMES = ("due_from", "due_until")


def upgrade():
    for name in NAMES:
        op.add_column("outcomes", sa.Column(name, sa.DateTime(timezone=True), nullable=True))


def downgrade():
    for name in NAMES:
        op.drop_column("outcomes", name)
