"""What is billed at once, noise scales that had drifted, and readings of the target's metric.

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
    op.create_table(
        "readings",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("epochs", sa.Double(), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.CheckConstraint(
            "epochs = epochs AND epochs < 'Infinity'::float8",
            name=op.f("ck_readings_epochs_finite"),
        ),
        sa.CheckConstraint(
            "value = value AND value < 'Infinity'::float8", name=op.f("ck_readings_value_finite")
        ),
        sa.ForeignKeyConstraint(
            ["job"], ["jobs.id"], name=op.f("fk_readings_job"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job", "epochs", name=op.f("pk_readings")),
    )


def downgrade():
    op.drop_table("readings")
    op.drop_table("drifts")
    op.drop_constraint(op.f("ck_vms_quantum_finite"), "vms")
    op.drop_column("vms", "quantum")
