"""What commands printed, when a metric was read, and models that are to be forgotten.

Metrics that were read before have no moment.

Revision ID: 0029
"""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"


def upgrade():
    op.add_column("readings", sa.Column("at", sa.DateTime(timezone=True)))
    op.alter_column("readings", "at", server_default=sa.text("now()"))
    op.create_index(op.f("ix_vms_intended_at_vms_id"), "vms", ["intended_at", "id"])
    op.create_table(
        "log_lines",
        sa.Column("number", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("line", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job"], ["jobs.id"], name=op.f("fk_log_lines_job"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_log_lines")),
        sa.UniqueConstraint("worker", "line", name=op.f("uq_log_lines_worker_line")),
    )
    op.create_index(op.f("ix_log_lines_job_log_lines_number"), "log_lines", ["job", "number"])
    op.create_table(
        "log_counts",
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("printed", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job"], ["jobs.id"], name=op.f("fk_log_counts_job"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["worker"], ["vms.id"], name=op.f("fk_log_counts_worker"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("worker", name=op.f("pk_log_counts")),
    )
    op.create_index(op.f("ix_log_counts_job"), "log_counts", ["job"])
    op.create_table(
        "forgotten_models",
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("signature", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("project", "signature", name=op.f("pk_forgotten_models")),
    )


def downgrade():
    op.drop_table("forgotten_models")
    op.drop_table("log_counts")
    op.drop_table("log_lines")
    op.drop_index(op.f("ix_vms_intended_at_vms_id"), "vms")
    op.drop_column("readings", "at")
