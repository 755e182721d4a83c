"""Whether the noise had settled when a configuration was measured: a second measurement may follow.

Revision ID: 0013
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

NAME, KEY = "has_settled_noise", ["job", "workers", "global_batch"]


def upgrade():
    settled = sa.Column(NAME, sa.Boolean(), nullable=False, server_default=sa.true())
    op.add_column("observations", settled)
    op.alter_column("observations", NAME, server_default=None)
    op.drop_constraint("pk_observations", "observations")
    op.create_primary_key("pk_observations", "observations", [*KEY, NAME])


def downgrade():
    op.execute(f"DELETE FROM observations WHERE NOT {NAME}")
    op.drop_constraint("pk_observations", "observations")
    op.create_primary_key("pk_observations", "observations", KEY)
    op.drop_column("observations", NAME)
