"""The first schema.

Revision ID: 0001
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy import Text
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None

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
    op.create_table('jobs',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('model_key', sa.Text(), nullable=False),
    sa.Column('spec', postgresql.JSONB(astext_type=Text()), nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('cancel_requested_at', sa.DateTime(timezone=True), nullable=True),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_jobs'))
    )
    op.create_index(op.f('ix_jobs_created_at_jobs_id'), 'jobs', ['created_at', 'id'], unique=False)
    op.create_table('models',
    sa.Column('signature', sa.Text(), nullable=False),
    sa.Column('model_key', sa.Text(), nullable=False),
    sa.Column('model', postgresql.JSONB(astext_type=Text()), nullable=False),
    sa.Column('jobs', sa.Integer(), nullable=False),
    sa.Column('updated_at', sa.DateTime(timezone=True), nullable=False),
    sa.PrimaryKeyConstraint('signature', name=op.f('pk_models'))
    )
    op.create_table('directives',
    sa.Column('job', sa.Text(), nullable=False),
    sa.Column('generation', sa.BigInteger(), nullable=False),
    sa.Column('directive', postgresql.JSONB(astext_type=Text()), nullable=False),
    sa.Column('published_at', sa.DateTime(timezone=True), nullable=False),
    sa.ForeignKeyConstraint(['job'], ['jobs.id'], name=op.f('fk_directives_job'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('job', 'generation', name=op.f('pk_directives'))
    )
    op.create_table('events',
    sa.Column('sequence', sa.BigInteger(), sa.Identity(always=True), nullable=False),
    sa.Column('job', sa.Text(), nullable=False),
    sa.Column('at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('kind', sa.Text(), nullable=False),
    sa.Column('message', sa.Text(), nullable=False),
    sa.Column('data', postgresql.JSONB(astext_type=Text()), nullable=False),
    sa.ForeignKeyConstraint(['job'], ['jobs.id'], name=op.f('fk_events_job'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('sequence', name=op.f('pk_events'))
    )
    op.create_index(op.f('ix_events_job_events_sequence'), 'events', ['job', 'sequence'], unique=False)
    op.create_table('observations',
    sa.Column('job', sa.Text(), nullable=False),
    sa.Column('workers', sa.Integer(), nullable=False),
    sa.Column('global_batch', sa.Integer(), nullable=False),
    sa.Column('noise', sa.Double(), nullable=True),
    sa.Column('noise_scale', sa.Double(), nullable=True),
    sa.Column('compute_time', sa.Double(), nullable=False),
    sa.Column('sync_time', sa.Double(), nullable=False),
    sa.Column('iterations', sa.Integer(), nullable=False),
    sa.Column('seconds', sa.Double(), nullable=False),
    sa.Column('cost', sa.Numeric(), nullable=False),
    sa.Column('settled_at', sa.DateTime(timezone=True), nullable=False),
    sa.CheckConstraint("compute_time = compute_time AND compute_time < 'Infinity'::float8", name=op.f('ck_observations_compute_time_finite')),
    sa.CheckConstraint("noise = noise AND noise < 'Infinity'::float8", name=op.f('ck_observations_noise_finite')),
    sa.CheckConstraint("noise_scale = noise_scale AND noise_scale < 'Infinity'::float8", name=op.f('ck_observations_noise_scale_finite')),
    sa.CheckConstraint("seconds = seconds AND seconds < 'Infinity'::float8", name=op.f('ck_observations_seconds_finite')),
    sa.CheckConstraint("sync_time = sync_time AND sync_time < 'Infinity'::float8", name=op.f('ck_observations_sync_time_finite')),
    sa.ForeignKeyConstraint(['job'], ['jobs.id'], name=op.f('fk_observations_job'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('job', 'workers', 'global_batch', name=op.f('pk_observations'))
    )
    op.create_table('outcomes',
    sa.Column('job', sa.Text(), nullable=False),
    sa.Column('phase', sa.Text(), nullable=False),
    sa.Column('reason', sa.Text(), nullable=False),
    sa.Column('search', sa.Text(), nullable=False),
    sa.Column('chosen', postgresql.JSONB(astext_type=Text()), nullable=True),
    sa.Column('choice', sa.Text(), nullable=True),
    sa.Column('worker_exit_code', sa.Integer(), nullable=True),
    sa.Column('epochs_to_target', sa.Double(), nullable=True),
    sa.Column('finished_at', sa.DateTime(timezone=True), nullable=True),
    sa.ForeignKeyConstraint(['job'], ['jobs.id'], name=op.f('fk_outcomes_job'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('job', name=op.f('pk_outcomes'))
    )
    op.create_index(op.f('ix_outcomes_phase'), 'outcomes', ['phase'], unique=False)
    op.create_table('regroups',
    sa.Column('job', sa.Text(), nullable=False),
    sa.Column('generation', sa.BigInteger(), nullable=False),
    sa.Column('pause', sa.Double(), nullable=False),
    sa.Column('iterations_lost', sa.BigInteger(), nullable=False),
    sa.Column('at', sa.DateTime(timezone=True), nullable=False),
    sa.CheckConstraint("pause = pause AND pause < 'Infinity'::float8", name=op.f('ck_regroups_pause_finite')),
    sa.ForeignKeyConstraint(['job'], ['jobs.id'], name=op.f('fk_regroups_job'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('job', 'generation', name=op.f('pk_regroups'))
    )
    op.create_table('vms',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('job', sa.Text(), nullable=False),
    sa.Column('launch_key', sa.Text(), nullable=False),
    sa.Column('state', sa.Text(), nullable=False),
    sa.Column('provider_id', sa.Text(), nullable=True),
    sa.Column('price_per_hour', sa.Numeric(), nullable=False),
    sa.Column('intended_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('ended_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('prepaid_until', sa.DateTime(timezone=True), nullable=False),
    sa.CheckConstraint("state IN ('intended', 'launched', 'gone')", name=op.f('ck_vms_state_known')),
    sa.ForeignKeyConstraint(['job'], ['jobs.id'], name=op.f('fk_vms_job'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_vms')),
    sa.UniqueConstraint('launch_key', name=op.f('uq_vms_launch_key'))
    )
    op.create_index(op.f('ix_vms_job'), 'vms', ['job'], unique=False)
    op.create_table('exits',
    sa.Column('worker', sa.Text(), nullable=False),
    sa.Column('code', sa.Integer(), nullable=False),
    sa.Column('tail', sa.Text(), nullable=False),
    sa.Column('at', sa.DateTime(timezone=True), nullable=False),
    sa.ForeignKeyConstraint(['worker'], ['vms.id'], name=op.f('fk_exits_worker'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('worker', name=op.f('pk_exits'))
    )
    op.create_table('steps',
    sa.Column('worker', sa.Text(), nullable=False),
    sa.Column('sequence', sa.BigInteger(), nullable=False),
    sa.Column('job', sa.Text(), nullable=False),
    sa.Column('generation', sa.BigInteger(), nullable=False),
    sa.Column('columns', postgresql.JSONB(astext_type=Text()), nullable=False),
    sa.ForeignKeyConstraint(['job'], ['jobs.id'], name=op.f('fk_steps_job'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['worker'], ['vms.id'], name=op.f('fk_steps_worker'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('worker', 'sequence', name=op.f('pk_steps'))
    )
    op.create_index(op.f('ix_steps_job_steps_generation'), 'steps', ['job', 'generation'], unique=False)
    op.create_table('workers',
    sa.Column('worker', sa.Text(), nullable=False),
    sa.Column('job', sa.Text(), nullable=False),
    sa.Column('address', sa.Text(), nullable=False),
    sa.Column('generation', sa.BigInteger(), nullable=False),
    sa.Column('iteration', sa.BigInteger(), nullable=False),
    sa.Column('samples', sa.BigInteger(), nullable=False),
    sa.Column('epochs', sa.Double(), nullable=False),
    sa.Column('metrics', postgresql.JSONB(astext_type=Text()), nullable=False),
    sa.Column('broken', sa.BigInteger(), nullable=True),
    sa.Column('refused', sa.BigInteger(), nullable=True),
    sa.Column('finished', sa.Text(), nullable=True),
    sa.Column('next_sequence', sa.BigInteger(), nullable=False),
    sa.Column('hello_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('seen_at', sa.DateTime(timezone=True), nullable=False),
    sa.CheckConstraint("epochs = epochs AND epochs < 'Infinity'::float8", name=op.f('ck_workers_epochs_finite')),
    sa.ForeignKeyConstraint(['job'], ['jobs.id'], name=op.f('fk_workers_job'), ondelete='CASCADE'),
    sa.ForeignKeyConstraint(['worker'], ['vms.id'], name=op.f('fk_workers_worker'), ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('worker', name=op.f('pk_workers'))
    )
    op.create_index(op.f('ix_workers_job'), 'workers', ['job'], unique=False)
    op.execute(FINAL_IS_FOREVER)


def downgrade():
    op.execute("DROP FUNCTION refuse_change_of_final_phase() CASCADE")
    op.drop_index(op.f('ix_workers_job'), table_name='workers')
    op.drop_table('workers')
    op.drop_index(op.f('ix_steps_job_steps_generation'), table_name='steps')
    op.drop_table('steps')
    op.drop_table('exits')
    op.drop_index(op.f('ix_vms_job'), table_name='vms')
    op.drop_table('vms')
    op.drop_table('regroups')
    op.drop_index(op.f('ix_outcomes_phase'), table_name='outcomes')
    op.drop_table('outcomes')
    op.drop_table('observations')
    op.drop_index(op.f('ix_events_job_events_sequence'), table_name='events')
    op.drop_table('events')
    op.drop_table('directives')
    op.drop_table('models')
    op.drop_index(op.f('ix_jobs_created_at_jobs_id'), table_name='jobs')
    op.drop_table('jobs')
