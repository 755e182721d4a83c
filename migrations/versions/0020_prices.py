"""Prices of what clouds rent out.

Revision ID: 0020
"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade():
    op.create_table(
        "prices",
        *(
            sa.Column(name, sa.Text(), nullable=False)
            for name in ("provider", "region", "item", "unit", "market")
        ),
        sa.Column("price", sa.Numeric(), nullable=False),
        sa.Column("vcpus", sa.Double(), nullable=True),
        sa.Column("memory_gib", sa.Double(), nullable=True),
        sa.Column("accelerator", sa.Text(), nullable=False),
        sa.Column("accelerators", sa.Integer(), nullable=False),
        sa.Column("as_of", sa.DateTime(timezone=True), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "price > 0 AND price < 1000000", name=op.f("ck_prices_price_plausible")
        ),
        sa.CheckConstraint(
            "source IN ('shipped', 'imported', 'cloud')", name=op.f("ck_prices_source_known")
        ),
        sa.CheckConstraint("market IN ('on_demand', 'spot')", name=op.f("ck_prices_market_known")),
        sa.PrimaryKeyConstraint(
            "provider", "region", "item", "unit", "market", name=op.f("pk_prices")
        ),
    )


def downgrade():
    op.drop_table("prices")
