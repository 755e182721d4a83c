"""What a machine is told when it enrols: its job's secrets, and what it runs."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from scavenger.job.planning import layouts_of, pipeline_of, signature_of, usable_layouts
from scavenger.layout import PLAIN, Layout
from scavenger.planning.layouts import PipelineForecast
from scavenger.protocol import ProfileReply, ProfileReport, Role, WorkerSpec
from scavenger.stack import Stack, refused_layouts
from service.api.dependencies import AppState
from service.api.problems import ApiProblem
from service.clouds.storage import CheckpointStorage, checkpoint_settings
from service.db import directives, jobs, layout_profiles, measurements, vms
from service.db.jobs import StoredJob, record_event
from service.db.layout_profiles import StoredProfile

ENROLMENT_WINDOW = timedelta(minutes=10)
EARLIER = "the model was profiled for an earlier job: "


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
        searches_layout=role == "worker" and job.spec.limits.layout_search is not None,
        **rehearsal_of(job, role),
    )


def with_layout(
    connection: Connection,
    machine_type: str,
    job: StoredJob,
    worker: str,
    runs: WorkerSpec,
    now: datetime,
) -> WorkerSpec:
    """Let a machine start in the layout that its job is in, or profile the model for one."""
    if not job.spec.profiles_model or runs.role != "worker":
        return runs
    known = layout_profiles.of_jobs(connection, [job.id]).get(job.id)
    if known is None:
        signature = signature_of(job.spec, machine_type, job.framework)
        known = layout_profiles.newest(connection, job.project, signature, job.spec.run)
        if known is None:
            return replace(runs, profile=True)
        take_over_refusals(connection, job.id, worker, known, now)
        record_profile(connection, job, signature, known, now, EARLIER)
    reply = layout_to_start_in(connection, job, known)
    if reply.refusal:  # which it is told once it asks
        return replace(runs, profile=True)
    return replace(runs, layout=reply.layout)


def take_over_refusals(
    connection: Connection, job: str, worker: str, known: StoredProfile, now: datetime
) -> None:
    """Let a job do without the layouts that an earlier one did without."""
    for check in known.refusals:
        if measurements.record_stack_check(connection, job, worker, check, now):
            failed = Stack.parse(check.stack).layout
            why = f"an earlier job that ran the same did: {check.refusal}"
            facts = {"stack": str(failed), "worker": worker}
            said = f"the job does without {failed}, as {why}"
            record_event(connection, job, now, "stack_refused", said, facts)


def store_profile(
    connection: Connection,
    machine_type: str,
    job: StoredJob,
    message: ProfileReport,
    now: datetime,
) -> ProfileReply:
    """Store what a machine measured of the model, and say in which layout it starts."""
    if not job.spec.profiles_model:
        return ProfileReply(job.spec.layout)
    signature = signature_of(job.spec, machine_type, job.framework)
    given = StoredProfile(message.profile, message.failure)
    record_profile(connection, job, signature, given, now)
    known = layout_profiles.of_jobs(connection, [job.id])[job.id]
    return layout_to_start_in(connection, job, known)


def record_profile(
    connection: Connection,
    job: StoredJob,
    signature: str,
    found: StoredProfile,
    now: datetime,
    source: str = "",
) -> None:
    """Store the profile of a job that has none, with an event that says what follows from it.

    Args:
        connection: The database.
        job: The job.
        signature: By which later jobs find it.
        found: The profile.
        now: The moment.
        source: Where the profile is from, in words before what follows; empty for this job.
    """
    if layout_profiles.record(connection, job.id, job.project, signature, found, now):
        why, facts = describe_layouts(job, found, layout_to_start_in(connection, job, found))
        record_event(connection, job.id, now, "layouts", f"{source}{why}", facts)


def layout_to_start_in(
    connection: Connection, job: StoredJob, known: StoredProfile
) -> ProfileReply:
    """Return the layout that a job is in, or else the one that its profile speaks for."""
    published = directives.newest(connection, job.id)
    checks = measurements.stack_checks_of_jobs(connection, [job.id])[job.id]
    if published is not None and published[0].layout:
        current = Layout.parse(published[0].layout)
        if job.spec.limits.layout_search is None or current not in refused_layouts(checks):
            return ProfileReply(current)
    if job.spec.pipeline_search is not None:
        return pipeline_to_train_in(job, known)
    found = None if known.profile is None else layouts_of(job.spec, known.profile)
    if found is None:
        if job.spec.limits.process_gib is None:
            return ProfileReply()
        return ProfileReply(
            refusal="nothing tells whether the model fits limits.process_gib, since "
            f"{known.failure}: leave it out, or let the script take 2 steps or more"
        )
    if not found.options:
        return ProfileReply(refusal=found.conclusion)
    assert known.profile is not None
    usable = usable_layouts(job.spec, checks, known.profile) or found.options
    return ProfileReply(usable[0].layout)


def layout_after_failure(
    connection: Connection,
    worker: str,
    failed: Layout,
    said: str,
    now: datetime,
) -> Layout | None:
    """Refuse a layout in which a job cannot train, and return the one that it is to be in.

    Args:
        connection: The database.
        worker: Whose command failed before it had trained in the layout.
        failed: The layout.
        said: What the command printed last.
        now: The moment.

    Returns:
        The layout; None where the job searches none, has trained in this one, or has no other.
    """
    job = jobs.find(connection, vms.job_of_existing_vm(connection, worker) or "")
    if job is None or job.spec.limits.layout_search is None:
        return None
    known = layout_profiles.of_jobs(connection, [job.id]).get(job.id)
    if known is None or known.profile is None:
        return None
    checks = measurements.stack_checks_of_jobs(connection, [job.id])[job.id]
    usable = usable_layouts(job.spec, checks, known.profile)
    other = next((option.layout for option in usable if option.layout != failed), None)
    if other is None or directives.has_trained_in(connection, job.id, failed):
        return None
    if measurements.refuse_layout(connection, job.id, worker, failed, said, now):
        why = f"the job does without {failed}, in which {worker} could not train: {said}"
        facts = {"stack": str(failed), "worker": worker}
        record_event(connection, job.id, now, "stack_refused", why, facts)
    return other


def pipeline_to_train_in(job: StoredJob, known: StoredProfile) -> ProfileReply:
    """Return the asynchronous pipeline that a job is in from beginning to end."""
    found = None if known.profile is None else pipeline_of(job.spec, known.profile)
    if found is None:
        return ProfileReply(
            refusal=f"nothing tells which stages are fastest, since {known.failure}: write the "
            "processes of each stage, e.g. stages: [1, 1], or let the script take 2 steps or more"
        )
    if isinstance(found, str):
        return ProfileReply(
            refusal=f"{found}: write strategy: all_reduce and limits.layout: auto, or the "
            "processes of each stage in place of stages: auto"
        )
    return ProfileReply(found.layout)


def describe_layouts(
    job: StoredJob, known: StoredProfile, reply: ProfileReply
) -> tuple[str, dict[str, Any]]:
    """Say what a profile tells of layouts, for an event."""
    if job.spec.pipeline_search is not None:
        pipeline = None if known.profile is None else pipeline_of(job.spec, known.profile)
        if not isinstance(pipeline, PipelineForecast):
            return reply.refusal, {"layouts": []}
        layout = pipeline.layout
        why = (
            f"the job trains in the asynchronous pipeline {pipeline.partition.shape}, cut at "
            f"{', '.join(layout.cuts)}, which is expected to be {pipeline.speedup:.3g} times as "
            "fast as one process"
        )
        return why, {"layouts": [str(layout)], "starts": str(layout)}
    found = None if known.profile is None else layouts_of(job.spec, known.profile)
    if found is None:
        why = f"the model was not profiled, so it is shared by no processes: {known.failure}"
        return why, {"layouts": []}
    refused = refused_layouts(known.refusals)
    named = [str(option.layout) for option in found.options if option.layout not in refused]
    why = found.conclusion
    if refused and not reply.refusal:
        why = f"the job starts with {reply.layout}, without those that it left out"
    starts = str(reply.layout) if found.options else None
    return why, {"layouts": named, "starts": starts}


def rehearsal_of(job: StoredJob, role: Role) -> dict[str, Any]:
    """Return the stack and the local batch that a new worker will train with, if it has to compile.

    The others train on meanwhile; without that they would wait for it.
    """
    chosen = job.chosen
    if chosen is None or role != "worker" or not Stack.parse(chosen.stack).is_rehearsed:
        return {}
    return {"stack": chosen.stack, "local_batch": -(-chosen.global_batch // chosen.workers)}
