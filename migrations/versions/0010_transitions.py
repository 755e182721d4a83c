"""What may become of a job and of a machine, and what a job waits for.

Revision ID: 0010
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

TRANSITIONS = """
CREATE FUNCTION refuse_illegal_phase() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.phase IN ('succeeded', 'failed', 'cancelled', 'capped') AND NEW IS DISTINCT FROM OLD THEN
    RAISE EXCEPTION 'job % is % already and cannot become %', OLD.job, OLD.phase, NEW.phase;
  END IF;
  IF NEW.phase <> OLD.phase AND (OLD.phase, NEW.phase) NOT IN (
    ('pending', 'starting'), ('pending', 'training'),
    ('pending', 'failed'), ('pending', 'cancelled'), ('pending', 'capped'),
    ('starting', 'probing'), ('starting', 'training'),
    ('starting', 'failed'), ('starting', 'cancelled'), ('starting', 'capped'),
    ('probing', 'training'), ('probing', 'succeeded'),
    ('probing', 'failed'), ('probing', 'cancelled'), ('probing', 'capped'),
    ('training', 'succeeded'),
    ('training', 'failed'), ('training', 'cancelled'), ('training', 'capped')
  ) THEN
    RAISE EXCEPTION 'job % is % and cannot become %', OLD.job, OLD.phase, NEW.phase;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER phases_follow_the_table BEFORE UPDATE ON outcomes
FOR EACH ROW EXECUTE FUNCTION refuse_illegal_phase();
CREATE FUNCTION refuse_illegal_state() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.state <> OLD.state AND (OLD.state, NEW.state) NOT IN (
    ('intended', 'launched'), ('intended', 'ending'), ('intended', 'gone'),
    ('launched', 'ending'), ('launched', 'gone'),
    ('ending', 'gone')
  ) THEN
    RAISE EXCEPTION 'machine % is % and cannot become %', OLD.id, OLD.state, NEW.state;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER states_follow_the_table BEFORE UPDATE ON vms
FOR EACH ROW EXECUTE FUNCTION refuse_illegal_state();
"""
FINAL_IS_FOREVER = """
CREATE FUNCTION refuse_change_of_final_phase() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.phase IN ('succeeded', 'failed', 'cancelled', 'capped') AND NEW.phase <> OLD.phase THEN
    RAISE EXCEPTION 'job % is % already and cannot become %', OLD.job, OLD.phase, NEW.phase;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER final_phase_is_forever BEFORE UPDATE ON outcomes
FOR EACH ROW EXECUTE FUNCTION refuse_change_of_final_phase();
"""


def upgrade():
    op.add_column("outcomes", sa.Column("waiting", sa.Text()))
    op.execute("DROP TRIGGER final_phase_is_forever ON outcomes")
    op.execute("DROP FUNCTION refuse_change_of_final_phase")
    op.execute(TRANSITIONS)


def downgrade():
    for trigger, table in (
        ("phases_follow_the_table", "outcomes"),
        ("states_follow_the_table", "vms"),
    ):
        op.execute(f"DROP TRIGGER {trigger} ON {table}")
    op.execute("DROP FUNCTION refuse_illegal_phase")
    op.execute("DROP FUNCTION refuse_illegal_state")
    op.execute(FINAL_IS_FOREVER)
    op.drop_column("outcomes", "waiting")
