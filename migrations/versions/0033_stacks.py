"""Which stack a probe measured, what workers found out about stacks, and code they compiled.

Revision ID: 0033
"""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"

KEY = ("job", "workers", "global_batch", "has_settled_noise")


def upgrade():
    stack = sa.Column("stack", sa.Text(), nullable=False, server_default="eager")
    op.add_column("observations", stack)
    op.drop_constraint("pk_observations", "observations", type_="primary")
    op.create_primary_key("pk_observations", "observations", [*KEY, "stack"])
    op.create_table(
        "stack_checks",
        sa.Column("job", sa.Text(), sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
        sa.Column("stack", sa.Text(), nullable=False),
        sa.Column("local_batch", sa.Integer(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("gradient_error", sa.Double(), nullable=False),
        sa.Column("refusal", sa.Text(), nullable=False),
        sa.Column("cache_trouble", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("job", "stack", "local_batch"),
        *[
            sa.CheckConstraint(f"{name} = {name} AND {name} < 'Infinity'::float8", name=f"{name}_finite")
            for name in ("seconds", "gradient_error")
        ],
    )
    op.create_table(
        "bundles",
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("last_used", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("project", "key"),
    )


def downgrade():
    op.drop_table("bundles")
    op.drop_table("stack_checks")
    op.execute("DELETE FROM observations WHERE stack <> 'eager'")
    op.drop_constraint("pk_observations", "observations", type_="primary")
    op.create_primary_key("pk_observations", "observations", list(KEY))
    op.drop_column("observations", "stack")
