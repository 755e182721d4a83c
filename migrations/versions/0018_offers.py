"""Several clouds: the offer of each machine, shortages, and accounts and sweeps by cloud.

Revision ID: 0018
"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"

# Until now all machines were on the computers of their controllers.
NEW = {"cloud": "local", "zone": "", "machine_type": "local", "market": "on_demand", "image": ""}


def upgrade():
    for name, before in NEW.items():
        op.add_column("vms", sa.Column(name, sa.Text(), nullable=False, server_default=before))
        op.alter_column("vms", name, server_default=None)
    op.add_column("vms", sa.Column("minimum", sa.Double(), nullable=False, server_default="0"))
    op.alter_column("vms", "minimum", server_default=None)
    op.add_column("vms", sa.Column("open_asks", sa.Integer(), nullable=False, server_default="0"))
    op.alter_column("vms", "open_asks", server_default=None)
    # Without its number a machine may have been asked for in vain, whether or not its end was ordered.
    op.execute("UPDATE vms SET open_asks = 1 WHERE state <> 'gone' AND attempted_at IS NOT NULL")
    op.add_column("vms", sa.Column("refusal", sa.Text(), nullable=True))
    op.add_column("vms", sa.Column("refusal_label", sa.Text(), nullable=True))
    op.add_column("vms", sa.Column("stamp", sa.Text(), nullable=True))
    op.create_check_constraint(
        op.f("ck_vms_market_known"), "vms", "market IN ('on_demand', 'spot')"
    )
    op.create_check_constraint(
        op.f("ck_vms_minimum_finite"), "vms", "minimum = minimum AND minimum < 'Infinity'::float8"
    )
    op.create_table(
        "shortages",
        sa.Column("cloud", sa.Text(), nullable=False),
        sa.Column("zone", sa.Text(), nullable=False),
        sa.Column("machine_type", sa.Text(), nullable=False),
        sa.Column("market", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "kind IN ('capacity', 'quota', 'credentials')", name=op.f("ck_shortages_kind_known")
        ),
        sa.PrimaryKeyConstraint(
            "cloud", "zone", "machine_type", "market", name=op.f("pk_shortages")
        ),
    )
    op.create_table(
        "accounts",
        sa.Column("cloud", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("cloud", name=op.f("pk_accounts")),
    )
    op.execute(
        "INSERT INTO accounts SELECT 'local', account FROM installations WHERE account IS NOT NULL"
    )
    op.drop_column("installations", "account")
    op.add_column("sweeps", sa.Column("cloud", sa.Text(), nullable=False, server_default="local"))
    op.alter_column("sweeps", "cloud", server_default=None)


def downgrade():
    op.execute("DELETE FROM sweeps WHERE cloud <> 'local'")
    op.drop_column("sweeps", "cloud")
    op.add_column("installations", sa.Column("account", sa.Text(), nullable=True))
    op.execute(
        "UPDATE installations SET account = "
        "(SELECT account FROM accounts WHERE cloud = 'local')"
    )
    op.drop_table("accounts")
    op.drop_table("shortages")
    op.drop_constraint(op.f("ck_vms_minimum_finite"), "vms")
    op.drop_constraint(op.f("ck_vms_market_known"), "vms")
    for name in ("stamp", "refusal_label", "refusal", "open_asks", "minimum", *NEW):
        op.drop_column("vms", name)
