"""A commit that records events announces that there are some.

Streams of events wait for it. The announcement is made where events get their numbers, so no code
can forget it, and Postgres delivers it when they are visible.

Revision ID: 0025
"""

from alembic import op

revision = "0025"
down_revision = "0024"

NUMBER_EVENT = """
CREATE OR REPLACE FUNCTION number_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  -- Any pair of numbers, as long as no other lock has it; those of one number are others.
  PERFORM pg_advisory_xact_lock(1554571886, 13);
  UPDATE events SET sequence = DEFAULT WHERE sequence = NEW.sequence;
  {announcement}RETURN NULL;
END $$;
"""
ANNOUNCEMENT = "PERFORM pg_notify('scavenger_events', '');\n  "


def upgrade():
    op.execute(NUMBER_EVENT.format(announcement=ANNOUNCEMENT))


def downgrade():
    op.execute(NUMBER_EVENT.format(announcement=""))
