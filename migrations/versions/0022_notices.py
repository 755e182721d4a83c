"""When a cloud told a machine that it takes it back, and which places it took machines from.

Revision ID: 0022
"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"

KINDS = "kind IN ('capacity', 'quota', 'credentials'"


def upgrade():
    op.add_column("vms", sa.Column("warned_at", sa.DateTime(timezone=True)))
    allow_kinds(f"{KINDS}, 'taken')")


def downgrade():
    op.execute("DELETE FROM shortages WHERE kind = 'taken'")
    allow_kinds(f"{KINDS})")
    op.drop_column("vms", "warned_at")


def allow_kinds(condition):
    name = op.f("ck_shortages_kind_known")
    op.drop_constraint(name, "shortages")
    op.create_check_constraint(name, "shortages", condition)
