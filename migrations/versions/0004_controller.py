"""Which controller acts for a job, and machines whose end has to be proven.

Revision ID: 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

GONE_IS_FOREVER = """
CREATE FUNCTION refuse_change_of_gone_vm() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.state = 'gone' AND NEW IS DISTINCT FROM OLD THEN
    RAISE EXCEPTION 'machine % is gone already and cannot change', OLD.id;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER gone_vm_is_forever BEFORE UPDATE ON vms
FOR EACH ROW EXECUTE FUNCTION refuse_change_of_gone_vm();
"""
BEFORE = "state IN ('intended', 'launched', 'gone')"
AFTER = "state IN ('intended', 'launched', 'ending', 'gone')"


def upgrade():
    op.create_table(
        "leases",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["job"], ["jobs.id"], name=op.f("fk_leases_job"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_leases")),
    )
    # What machines of before were told at their launch is not known; none of them is launched again.
    op.add_column("vms", sa.Column("prepaid", sa.Double(), nullable=False, server_default="0"))
    op.add_column("vms", sa.Column("orders", sa.Integer(), nullable=False, server_default="0"))
    for name in ("prepaid", "orders"):
        op.alter_column("vms", name, server_default=None)
    for name in ("attempted_at", "missed_at", "ordered_at"):
        op.add_column("vms", sa.Column(name, sa.DateTime(timezone=True)))
    op.execute("UPDATE vms SET attempted_at = intended_at")
    op.create_check_constraint(
        op.f("ck_vms_prepaid_finite"), "vms", "prepaid = prepaid AND prepaid < 'Infinity'::float8"
    )
    op.drop_constraint(op.f("ck_vms_state_known"), "vms")
    op.create_check_constraint(op.f("ck_vms_state_known"), "vms", AFTER)
    op.execute(GONE_IS_FOREVER)


def downgrade():
    op.execute("DROP TRIGGER gone_vm_is_forever ON vms")
    op.execute("DROP FUNCTION refuse_change_of_gone_vm")
    op.execute("UPDATE vms SET state = 'launched' WHERE state = 'ending'")
    op.drop_constraint(op.f("ck_vms_state_known"), "vms")
    op.create_check_constraint(op.f("ck_vms_state_known"), "vms", BEFORE)
    for name in ("prepaid", "orders", "attempted_at", "missed_at", "ordered_at"):
        op.drop_column("vms", name)
    op.drop_table("leases")
