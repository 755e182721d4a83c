"""A keyed fingerprint of the secret that the controllers of a database share.

Revision ID: 0009
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade():
    op.add_column("installations", sa.Column("fingerprint", sa.Text(), nullable=True))


def downgrade():
    op.drop_column("installations", "fingerprint")
