"""What spot machines cost, as their clouds showed it.

Revision ID: 0019
"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade():
    op.create_table(
        "vm_prices",
        sa.Column("vm", sa.Text(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("price_per_hour", sa.Numeric(), nullable=False),
        sa.ForeignKeyConstraint(
            ["vm"], ["vms.id"], name=op.f("fk_vm_prices_vm"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("vm", "since", name=op.f("pk_vm_prices")),
    )


def downgrade():
    op.drop_table("vm_prices")
