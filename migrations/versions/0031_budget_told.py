"""How much of its cap the events of a job have told of.

Revision ID: 0031
"""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"


def upgrade():
    told = sa.Column("budget_told", sa.Integer(), nullable=False, server_default="0")
    op.add_column("outcomes", told)


def downgrade():
    op.drop_column("outcomes", "budget_told")
