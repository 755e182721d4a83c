"""What of a script's values was NaN or infinite, and whether a job had diverged when it ended.

Revision ID: 0016
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0016"
down_revision = "0015"


def upgrade():
    # Agents of before say nothing of it, and no job of before is known to have diverged.
    for table, column in (
        ("workers", sa.Column("not_finite", postgresql.JSONB(), nullable=False, server_default="{}")),
        ("outcomes", sa.Column("diverged", sa.Boolean(), nullable=False, server_default="false")),
    ):
        op.add_column(table, column)
        op.alter_column(table, column.name, server_default=None)
    op.create_table(
        "divergences",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("series", sa.Text(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("iteration", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["job"], ["jobs.id"], name=op.f("fk_divergences_job"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job", "series", name=op.f("pk_divergences")),
    )


def downgrade():
    op.drop_table("divergences")
    op.drop_column("outcomes", "diverged")
    op.drop_column("workers", "not_finite")
