"""What a machine is told when it enrols: its job's secrets, and what it runs."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from scavenger.layout import PLAIN
from scavenger.protocol import Role, WorkerSpec
from scavenger.stack import Stack
from service.api.dependencies import AppState
from service.api.problems import ApiProblem
from service.clouds.storage import CheckpointStorage, checkpoint_settings
from service.db import jobs, vms
from service.db.jobs import StoredJob, record_event

ENROLMENT_WINDOW = timedelta(minutes=10)


def job_of_new_machine(
    connection: Connection, app_state: AppState, worker: str, now: datetime
) -> StoredJob:
    """Return the job of a machine that was launched recently, or refuse."""
    job = vms.job_of_existing_vm(connection, worker)
    attempted_at = vms.last_attempt_of(connection, worker)
    found = None if job is None else jobs.find(connection, job)
    if found is None or attempted_at is None:
        raise no_machine_problem(worker)
    if now > attempted_at + ENROLMENT_WINDOW + timedelta(seconds=app_state.max_startup_seconds):
        raise ApiProblem("forbidden", f"{worker} was launched too long ago to come up now")
    return found


def no_machine_problem(worker: str) -> ApiProblem:
    """Return the answer to a machine that has ended, or whose job has."""
    return ApiProblem("forbidden", f"{worker} is no machine of a running job")


def secrets_for(
    connection: Connection, app_state: AppState, job: StoredJob, now: datetime
) -> dict[str, str]:
    """Return the secrets of a job, and record an event for each that is gone."""
    names = job.spec.run.secrets
    for name in app_state.secret_store.missing_names(job.project, names):
        why = f"the secret {name} of the project {job.project} no longer exists"
        record_event(connection, job.id, now, "secret_missing", why, {"name": name})
    return dict(app_state.secret_store.read(job.project, names))


def worker_spec(job: StoredJob, role: Role, storage: CheckpointStorage) -> WorkerSpec:
    """Return what a machine of a job runs, and what it may rehearse before it says hello."""
    run, saved = job.spec.run, checkpoint_settings(job.spec)
    # The agent has parameter servers of its own; scripts of TensorFlow serve themselves.
    has_script = role == "worker" or run.is_under_agent
    directory = storage.directory(job.id, job.spec)
    return WorkerSpec(
        role=role,
        strategy=job.spec.strategy.name,
        command=run.command if has_script else (),
        directory=run.directory,
        code=run.code if has_script else None,
        setup=run.setup or () if has_script else (),
        variables=run.env,
        checkpoints=None if directory is None else str(directory),
        checkpoint_every=saved.every,
        checkpoint_keep=saved.keep,
        checkpoint_store=storage.bucket(job.spec) is not None,
        drain=run.drain,
        stall=run.stall,
        layout=job.spec.layout if role == "worker" else PLAIN,
        **rehearsal_of(job, role),
    )


def rehearsal_of(job: StoredJob, role: Role) -> dict[str, Any]:
    """Return the stack and the local batch that a new worker will train with, if it has to compile.

    The others train on meanwhile; without that they would wait for it.
    """
    chosen = job.chosen
    if chosen is None or role != "worker" or not Stack.parse(chosen.stack).is_rehearsed:
        return {}
    return {"stack": chosen.stack, "local_batch": -(-chosen.global_batch // chosen.workers)}
