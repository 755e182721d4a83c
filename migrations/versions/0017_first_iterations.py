"""First iterations instead of statistics, whole chunks, and launch counters under their name.

Revision ID: 0017
"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"

SERIES = ("mean", "distance", "fading", "lowest", "highest")


def upgrade():
    op.create_table(
        "measured_generations",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("first_iteration", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job"], ["jobs.id"], name=op.f("fk_measured_generations_job"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job", "generation", name=op.f("pk_measured_generations")),
    )
    op.execute(
        "INSERT INTO measured_generations SELECT job, generation, CAST(lowest AS bigint) "
        "FROM statistics WHERE series = 'iteration'"
    )
    op.drop_table("statistics")
    op.drop_column("chunks", "every")
    op.rename_table("epochs", "launch_counters")
    op.execute("ALTER INDEX pk_epochs RENAME TO pk_launch_counters")


def downgrade():
    op.execute("ALTER INDEX pk_launch_counters RENAME TO pk_epochs")
    op.rename_table("launch_counters", "epochs")
    op.add_column(
        "chunks", sa.Column("every", sa.Integer(), nullable=False, server_default="1")
    )
    op.create_table(
        "statistics",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("series", sa.Text(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        *[sa.Column(name, sa.Double(), nullable=False) for name in SERIES],
        *[
            sa.CheckConstraint(
                f"{name} = {name} AND {name} < 'Infinity'::float8",
                name=op.f(f"ck_statistics_{name}_finite"),
            )
            for name in SERIES
        ],
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_statistics_job"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job", "generation", "series", name=op.f("pk_statistics")),
    )
    # What the controller reads of them; the figures of a series are lost.
    op.execute(
        "INSERT INTO statistics SELECT job, generation, 'iteration', 1, first_iteration, 0, 0, "
        "first_iteration, first_iteration FROM measured_generations"
    )
    op.drop_table("measured_generations")
