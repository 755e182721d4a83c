"""Orders: what users ask of running jobs.

Revision ID: 0026
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0026"
down_revision = "0025"

ENDS_ARE_FOREVER = """
CREATE FUNCTION refuse_change_of_order() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.state <> 'open' OR (NEW.job, NEW.number, NEW.kind, NEW.wish, NEW.reason, NEW.token, NEW.at)
    IS DISTINCT FROM (OLD.job, OLD.number, OLD.kind, OLD.wish, OLD.reason, OLD.token, OLD.at) THEN
    RAISE EXCEPTION 'order % of job % is % and does not change', OLD.number, OLD.job, OLD.state;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER an_order_ends_once BEFORE UPDATE ON orders
FOR EACH ROW EXECUTE FUNCTION refuse_change_of_order();
"""


def upgrade():
    op.create_table(
        "orders",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("wish", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("told", sa.Text(), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "kind IN ('resize', 'probe', 'pause', 'resume', 'change')",
            name=op.f("ck_orders_kind_known"),
        ),
        sa.CheckConstraint(
            "state IN ('open', 'done', 'refused', 'replaced')", name=op.f("ck_orders_state_known")
        ),
        sa.CheckConstraint(
            "(state = 'open') = (ended_at IS NULL) AND (state = 'open') = (told IS NULL)",
            name=op.f("ck_orders_end_told"),
        ),
        sa.ForeignKeyConstraint(
            ["job"], ["jobs.id"], name=op.f("fk_orders_job"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job", "number", name=op.f("pk_orders")),
    )
    op.execute(ENDS_ARE_FOREVER)


def downgrade():
    op.drop_table("orders")
    op.execute("DROP FUNCTION refuse_change_of_order")
