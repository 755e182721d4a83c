"""Events get their numbers at the commit, one transaction after the other.

A number that is drawn when its row is inserted becomes visible when its transaction commits,
perhaps after larger ones, and a follower that asks for what comes after the largest skips it for good. So a
row is inserted under a negative number, which no other transaction ever sees. A deferred trigger
gives it the real one at the commit, and holds a lock meanwhile that goes with the transaction, when
its rows are visible. A reader that sees a number therefore sees all smaller ones that will ever be.

Nothing else is waited for under this lock: all that the trigger locks, the insert has locked before.

Revision ID: 0014
"""

from alembic import op

revision = "0014"
down_revision = "0013"

NUMBERS_AT_COMMIT = """
CREATE FUNCTION withhold_event_number() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.sequence := -NEW.sequence;
  RETURN NEW;
END $$;
CREATE TRIGGER events_begin_unnumbered BEFORE INSERT ON events
FOR EACH ROW EXECUTE FUNCTION withhold_event_number();
CREATE FUNCTION number_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  -- Any pair of numbers, as long as no other lock has it; those of one number are others.
  PERFORM pg_advisory_xact_lock(1554571886, 13);
  UPDATE events SET sequence = DEFAULT WHERE sequence = NEW.sequence;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER events_are_numbered_at_commit AFTER INSERT ON events
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION number_event();
CREATE FUNCTION refuse_change_of_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'event % was told already and cannot change', OLD.sequence;
END $$;
CREATE TRIGGER told_events_are_forever BEFORE UPDATE ON events
FOR EACH ROW WHEN (OLD.sequence > 0) EXECUTE FUNCTION refuse_change_of_event();
"""
TRIGGERS = {
    "events_begin_unnumbered": "withhold_event_number",
    "events_are_numbered_at_commit": "number_event",
    "told_events_are_forever": "refuse_change_of_event",
}


def upgrade():
    op.execute(NUMBERS_AT_COMMIT)


def downgrade():
    for trigger, function in TRIGGERS.items():
        op.execute(f"DROP TRIGGER {trigger} ON events")
        op.execute(f"DROP FUNCTION {function}")
