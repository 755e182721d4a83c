"""What is billed at once, and noise scales that had drifted.

Revision ID: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade():
    # Machines there are were billed exactly; new ones always say.
    op.add_column("vms", sa.Column("quantum", sa.Double(), nullable=False, server_default="0"))
    op.alter_column("vms", "quantum", server_default=None)
    op.create_check_constraint(
        op.f("ck_vms_quantum_finite"), "vms", "quantum = quantum AND quantum < 'Infinity'::float8"
    )
    op.create_table(
        "drifts",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("noise_scale", sa.Double(), nullable=False),
        sa.CheckConstraint(
            "noise_scale = noise_scale AND noise_scale < 'Infinity'::float8",
            name=op.f("ck_drifts_noise_scale_finite"),
        ),
        sa.ForeignKeyConstraint(
            ["job"], ["jobs.id"], name=op.f("fk_drifts_job"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job", "at", name=op.f("pk_drifts")),
    )


def downgrade():
    op.drop_table("drifts")
    op.drop_constraint(op.f("ck_vms_quantum_finite"), "vms")
    op.drop_column("vms", "quantum")
