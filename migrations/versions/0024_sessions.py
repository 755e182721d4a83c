"""Browsers that are signed in.

Revision ID: 0024
"""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"


def upgrade():
    for table, moments in {
        "sessions": ("created_at", "last_used_at"),
        "sign_in_codes": ("expires_at",),
    }.items():
        op.create_table(
            table,
            sa.Column("digest", sa.Text(), nullable=False),
            sa.Column("token", sa.Text(), nullable=False),
            *(sa.Column(name, sa.DateTime(timezone=True), nullable=False) for name in moments),
            sa.ForeignKeyConstraint(
                ["token"], ["tokens.id"], name=op.f(f"fk_{table}_token"), ondelete="CASCADE"
            ),
            sa.PrimaryKeyConstraint("digest", name=op.f(f"pk_{table}")),
        )


def downgrade():
    op.drop_table("sign_in_codes")
    op.drop_table("sessions")
