"""What a machine measured of a model, from which the layouts of a job follow.

Revision ID: 0035
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0035"
down_revision = "0034"


def upgrade():
    job = sa.ForeignKey("jobs.id", ondelete="CASCADE")
    op.create_table(
        "layout_profiles",
        sa.Column("job", sa.Text(), job, primary_key=True),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("signature", sa.Text(), nullable=False),
        sa.Column("profile", postgresql.JSONB(none_as_null=True)),
        sa.Column("failure", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index(
        "ix_layout_profiles_signature",
        "layout_profiles",
        ["project", "signature", "at"],
    )


def downgrade():
    op.drop_table("layout_profiles")
