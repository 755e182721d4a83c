"""What memory a stack needs, relative to the script as it is.

Revision ID: 0034
"""

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"

NAME = "memory_share_finite"


def upgrade():
    share = sa.Column("memory_share", sa.Double(), nullable=False, server_default="1")
    op.add_column("stack_checks", share)
    finite = "memory_share = memory_share AND memory_share < 'Infinity'::float8"
    op.create_check_constraint(NAME, "stack_checks", finite)


def downgrade():
    op.drop_column("stack_checks", "memory_share")
