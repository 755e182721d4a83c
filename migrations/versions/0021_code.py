"""The code that jobs run, by project and hash.

Revision ID: 0021
"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade():
    op.create_table(
        "packages",
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_used", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("project", "sha256", name=op.f("pk_packages")),
    )
    # It is compressed already, and only of uncompressed content a part is read without the whole.
    op.execute("ALTER TABLE packages ALTER COLUMN content SET STORAGE EXTERNAL")


def downgrade():
    op.drop_table("packages")
