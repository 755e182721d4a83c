"""Jobs of a model are found without a look at all others.

Revision ID: 0030
"""

from alembic import op

revision = "0030"
down_revision = "0029"


def upgrade():
    op.create_index(op.f("ix_jobs_project_jobs_model_key"), "jobs", ["project", "model_key"])


def downgrade():
    op.drop_index(op.f("ix_jobs_project_jobs_model_key"), "jobs")
