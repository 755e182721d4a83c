"""Where the machines of a database's controllers are.

Revision ID: 0011
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade():
    op.add_column("installations", sa.Column("account", sa.Text(), nullable=True))


def downgrade():
    op.drop_column("installations", "account")
