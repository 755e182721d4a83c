"""The curve that each choice of a job was made from.

Jobs that have chosen before have none: theirs is drawn from what is known when it is asked for.

Revision ID: 0015
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0015"
down_revision = "0014"

CHOICES_ARE_FOREVER = """
CREATE FUNCTION refuse_change_of_curve() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'curve % of % was chosen from already and cannot change', OLD.number, OLD.job;
END $$;
CREATE TRIGGER curves_are_forever BEFORE UPDATE ON curves
FOR EACH ROW EXECUTE FUNCTION refuse_change_of_curve();
"""


def upgrade():
    op.create_table(
        "curves",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("curve", postgresql.JSONB(), nullable=False),
        sa.Column("points", postgresql.JSONB(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job"], ["jobs.id"], name=op.f("fk_curves_job"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job", "number", name=op.f("pk_curves")),
    )
    op.execute(CHOICES_ARE_FOREVER)


def downgrade():
    op.drop_table("curves")
    op.execute("DROP FUNCTION refuse_change_of_curve")
