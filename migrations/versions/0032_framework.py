"""What the workers of a job train with, and a search that begins again because of it.

Revision ID: 0032
"""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"

PHASES = """
CREATE OR REPLACE FUNCTION refuse_illegal_phase() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.phase IN ('succeeded', 'failed', 'cancelled', 'capped') AND NEW IS DISTINCT FROM OLD THEN
    RAISE EXCEPTION 'job %% is %% already and cannot become %%', OLD.job, OLD.phase, NEW.phase;
  END IF;
  IF NEW.phase <> OLD.phase AND (OLD.phase, NEW.phase) NOT IN (
    ('pending', 'starting'), ('pending', 'training'),
    ('pending', 'failed'), ('pending', 'cancelled'), ('pending', 'capped'),
    ('starting', 'probing'), ('starting', 'training'),
    ('starting', 'failed'), ('starting', 'cancelled'), ('starting', 'capped'),
    ('probing', 'training'), ('probing', 'succeeded'),
    ('probing', 'failed'), ('probing', 'cancelled'), ('probing', 'capped'),
    %s('training', 'succeeded'),
    ('training', 'failed'), ('training', 'cancelled'), ('training', 'capped')
  ) THEN
    RAISE EXCEPTION 'job %% is %% and cannot become %%', OLD.job, OLD.phase, NEW.phase;
  END IF;
  RETURN NEW;
END $$
"""


def upgrade():
    for table in ("workers", "outcomes"):
        told = sa.Column("framework", sa.Text(), nullable=False, server_default="")
        op.add_column(table, told)
    op.execute(PHASES % "('training', 'probing'), ")


def downgrade():
    op.execute(PHASES % "")
    for table in ("workers", "outcomes"):
        op.drop_column(table, "framework")
