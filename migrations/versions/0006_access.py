"""Who may do what: tokens of people, projects, and what was asked by whom.

Revision ID: 0006
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

AUDIT_IS_FOREVER = """
CREATE FUNCTION refuse_change_of_audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'what was asked by whom cannot be changed or forgotten';
END $$;
CREATE TRIGGER audit_is_forever BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
FOR EACH STATEMENT EXECUTE FUNCTION refuse_change_of_audit();
"""


def upgrade():
    op.create_table(
        "tokens",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.Column("revoked_at", sa.DateTime(timezone=True)),
        sa.Column("last_used_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint(
            "role IN ('viewer', 'submitter', 'operator', 'admin')", name=op.f("ck_tokens_role_known")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
    )
    op.create_table(
        "enrolments",
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("nonce_digest", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["worker"], ["vms.id"], name=op.f("fk_enrolments_worker"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("worker", name=op.f("pk_enrolments")),
    )
    op.create_table(
        "audit",
        sa.Column("number", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("method", sa.Text(), nullable=False),
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("target", sa.Text()),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_project_audit_number"), "audit", ["project", "number"])
    op.execute(AUDIT_IS_FOREVER)
    for table in ("jobs", "models"):
        column = sa.Column("project", sa.Text(), nullable=False, server_default="default")
        op.add_column(table, column)
        op.alter_column(table, "project", server_default=None)
    index = op.f("ix_jobs_project_jobs_created_at_jobs_id")
    op.create_index(index, "jobs", ["project", "created_at", "id"])
    op.drop_constraint(op.f("pk_models"), "models")
    op.create_primary_key(op.f("pk_models"), "models", ["project", "signature"])


def downgrade():
    op.execute("DELETE FROM models WHERE project <> 'default'")
    op.drop_constraint(op.f("pk_models"), "models")
    op.create_primary_key(op.f("pk_models"), "models", ["signature"])
    op.drop_index(op.f("ix_jobs_project_jobs_created_at_jobs_id"), "jobs")
    for table in ("jobs", "models"):
        op.drop_column(table, "project")
    op.drop_table("audit")
    op.execute("DROP FUNCTION refuse_change_of_audit")
    op.drop_table("enrolments")
    op.drop_table("tokens")
