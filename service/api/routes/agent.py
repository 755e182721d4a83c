"""Routes of machines: boot, enrol, hello, report, lease, notice, exit; backfill by an operator.

Replies carry the newest Directive. On some clouds every process of a machine can read what it was
launched with; the bootstrap token there is therefore worth one exchange, soon after the launch.
The answer to it may get lost: the same nonce gets the same answer again, any other is refused.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Response
from fastapi.responses import PlainTextResponse
from sqlalchemy import Connection

from scavenger.layout import Layout
from scavenger.protocol import (
    CommandExit,
    Directive,
    EnrolmentReply,
    EnrolmentRequest,
    ExitReply,
    Hello,
    InterruptionNotice,
    ProfileReply,
    ProfileReport,
    Reply,
    StepReport,
    VmLease,
)
from service import ledger
from service.api.dependencies import AppState, RequestBody, SigningKeys, State
from service.api.enrolment import (
    job_of_new_machine,
    layout_after_failure,
    no_machine_problem,
    secrets_for,
    store_profile,
    with_layout,
    worker_spec,
)
from service.api.openapi import answers_problems, problem_doc, request_body
from service.api.problems import ApiProblem
from service.api.security import PUBLIC, BootstrapWorker, CurrentWorker, GuardedRoute, Operator
from service.api.telemetry import ValidatedReport, parse_report, store_report
from service.auth.permissions import BootstrapPrincipal, UserPrincipal, WorkerPrincipal
from service.db import directives, jobs, measurements, vms, workers
from service.db.jobs import record_event
from service.db.shortages import record_taken
from service.observability import metrics
from service.observability.redaction import Redactor
from service.state.job_state import describe_divergence, watched_series
from service.state.loader import load_ordered_job

router = APIRouter(prefix="/v1", tags=["agent"], route_class=GuardedRoute)

EVENT_REDACTOR = Redactor()  # scripts print their environment when they fail
MAX_SENTENCE, MAX_TAIL = 500, 8000


class PackageResponse(Response):
    """A wheel."""

    media_type = "application/zip"


async def report_of(body: RequestBody) -> ValidatedReport:
    """Parse a report here: FastAPI would refuse all of it for one bad row, and is slower."""
    return parse_report(body)


ReportBody = Annotated[ValidatedReport, Depends(report_of)]


@router.post("/agent/enrol")
def enrol(
    app_state: State, machine: BootstrapWorker, request: EnrolmentRequest, keys: SigningKeys
) -> EnrolmentReply:
    """Exchange a bootstrap token for a worker token, secrets, and what to run, once."""
    check_own_worker(machine, request.worker)
    now = app_state.now()
    with app_state.engine.begin() as connection:
        job = job_of_new_machine(connection, app_state, machine.worker, now)
        nonce = storable_text(request.nonce)
        is_first = workers.record_enrolment(connection, machine.worker, nonce, now)
        if not is_first:
            why = f"a second machine asked for the token of {machine.worker}: refused"
            facts = {"worker": machine.worker}
            record_event(connection, job.id, now, "enrolment_refused", why, facts)
        secrets = secrets_for(connection, app_state, job, now) if is_first else {}
        directive = newest_directive(connection, job.id)
        role = vms.role_of(connection, machine.worker)
        worker = worker_spec(job, role, app_state.storage)
        kind = app_state.machine_type
        worker = with_layout(connection, kind, job, machine.worker, worker, now)
    # Raised after the transaction: the event about the refusal must be kept.
    if not is_first:
        raise ApiProblem("forbidden", f"{machine.worker} has its token already")
    generation = 0 if directive is None else directive.generation
    token = keys.issue_worker_token(machine.worker, generation, now.timestamp())
    shared = keys.bundle_secret(job.project)
    return EnrolmentReply(token, keys.job_secret(job.id), secrets, worker, shared)


@router.get(
    "/agent/package",
    response_class=PackageResponse,
    openapi_extra=answers_problems("not_found"),
)
def package(app_state: State, machine: BootstrapWorker) -> PackageResponse:
    """Return the agent that a machine is to install; the ETag is its SHA-256."""
    found = app_state.agent_package
    if found is None:
        raise ApiProblem("not_found", "this controller serves no package: machines have the agent")
    with app_state.engine.connect() as connection:
        job_of_new_machine(connection, app_state, machine.worker, app_state.now())
    return PackageResponse(found.content, headers={"ETag": f'"{found.digest}"'})


@router.get(
    "/agent/ca",
    response_class=PlainTextResponse,
    responses={404: problem_doc(["not_found"])},
    dependencies=[PUBLIC],
)
def ca(app_state: State) -> PlainTextResponse:
    """Return the certificate authority of this controller, whose hash machines know."""
    if app_state.ca is None:
        raise ApiProblem("not_found", "the certificate of this controller is a public one")
    return PlainTextResponse(app_state.ca)


@router.post("/agent/profile")
def profile(app_state: State, caller: CurrentWorker, message: ProfileReport) -> ProfileReply:
    """Store the profile of a job's model, the first that comes, and say how to share the model."""
    check_own_worker(caller, message.worker)
    now = app_state.now()
    with app_state.engine.begin() as connection:
        job = jobs.find(connection, job_of(connection, caller.worker))
        assert job is not None
        message = replace(message, failure=storable_text(message.failure))
        reply = store_profile(connection, app_state.machine_type, job, message, now)
        jobs.notify_job_changed(connection, job.id)
        return reply


@router.post("/agent/hello")
def hello(app_state: State, caller: CurrentWorker, message: Hello) -> Reply:
    """A worker is up and can take part, or a server can serve; it may say so again."""
    check_own_worker(caller, message.worker)
    now = app_state.now()
    with app_state.engine.begin() as connection:
        job = job_of(connection, caller.worker)
        is_news = workers.address_of(connection, caller.worker) != message.address
        expected = workers.record_hello(connection, job, message, now)
        if is_news:
            facts = {"worker": caller.worker}
            record_event(connection, job, now, "hello", f"{caller.worker} is ready", facts)
        if is_news or message.role == "worker":  # a server says hello every second
            jobs.notify_job_changed(connection, job)
        return Reply(newest_directive(connection, job), expected)


@router.post(
    "/agent/report",
    openapi_extra={**request_body(StepReport), **answers_problems("sequence_gap")},
)
def report(app_state: State, caller: CurrentWorker, report: ReportBody) -> Reply:
    """Store what a worker measured, each row once."""
    check_own_worker(caller, report.message.worker)
    with app_state.engine.begin() as connection:
        return store_report_and_news(connection, app_state, report)


@router.post("/agent/lease")
def lease(app_state: State, caller: CurrentWorker) -> VmLease:
    """Reserve more time for a machine, as far as the job's cap allows.

    The worker of a paused job is told to leave. Parameter servers end after the workers.
    """
    with app_state.engine.begin() as connection:
        name = job_of(connection, caller.worker)
        vms.lock_job(connection, name)  # an order may be lowering the cap at this moment
        found = load_ordered_job(connection, name)
        assert found is not None
        cap, now = found.job.spec.limits.max_cost, app_state.now()
        left = ledger.reserve_more_time(
            connection, name, caller.worker, cap, now, is_over=found.is_held
        )
        drain = found.standing.is_paused and vms.role_of(connection, caller.worker) == "worker"
    return VmLease(max(left.total_seconds(), 0.0), drain)


@router.post("/agent/notice")
def notice(app_state: State, caller: CurrentWorker, message: InterruptionNotice) -> dict[str, str]:
    """The cloud will take a machine back: another is launched at once, while this one leaves."""
    check_own_worker(caller, message.worker)
    worker, now = caller.worker, app_state.now()
    with app_state.engine.begin() as connection:
        job = job_of(connection, worker)
        place = vms.record_warning(connection, worker, now)
        if place is None:
            return {}
        reason = storable_text(message.reason)
        why = f"{worker} will be taken back: {reason}"
        record_taken(connection, place, f"took a machine back: {reason}", now)
        ends_at = None if message.ends_at is None else message.ends_at.isoformat()
        facts = {"vm": worker, "reason": reason, "ends_at": ends_at}
        record_event(connection, job, now, "interruption_notice", why, facts)
        jobs.notify_job_changed(connection, job)
    return {}


@router.post("/agent/exit")
def exit_(app_state: State, caller: CurrentWorker, message: CommandExit) -> ExitReply:
    """The training command of a worker ended, for good or to be started again.

    One that failed before it had trained in a layout that was searched is started in another. If
    there is none, nothing is recorded: its machine then says that the end is final.
    """
    check_own_worker(caller, message.worker)
    worker, now = caller.worker, app_state.now()
    facts = {"worker": worker, "code": message.code}
    other: Layout | None = None
    with app_state.engine.begin() as connection:
        job = job_of(connection, worker)
        how = storable_text(message.in_words)[:MAX_SENTENCE]
        tail = storable_text(f"{message.tail}\n{message.cause}".strip())[-MAX_TAIL:]
        if message.failed_layout is not None:
            said = next((line for line in reversed(tail.splitlines()) if line.strip()), how)
            other = layout_after_failure(connection, worker, message.failed_layout, said, now)
            if other is None:
                return ExitReply()
            how = f"{how}, now with {other}"
        if message.restarts or other is not None:
            workers.record_restart(connection, worker, now)
            why = f"{worker} starts its command again: {how}"
            record_event(connection, job, now, "restart", why, facts)
        elif vms.record_exit(connection, worker, message.code, tail, now):
            record_event(connection, job, now, "exit", f"{worker} ended: {how}", facts)
        jobs.notify_job_changed(connection, job)
    return ExitReply(other)


@router.post(
    "/telemetry/backfill",
    openapi_extra={
        **request_body(StepReport),
        **answers_problems("not_found", "sequence_gap", "conflict_state"),
    },
)
# Agents of version 1 upload to the old path; they run for as long as their job does.
@router.post("/deliveries", include_in_schema=False)
def backfill(app_state: State, user: Operator, report: ReportBody) -> Reply:
    """Store a report that was spooled while the controller was unreachable, each row once."""
    worker = report.message.worker
    with app_state.engine.begin() as connection:
        job = visible_job_of(connection, user, worker)
        is_greeted = workers.address_of(connection, worker) is not None
        if vms.job_of_existing_vm(connection, worker) is not None:
            if not is_greeted:
                why = f"{worker} may still come up; upload its rows when its job has ended"
                raise ApiProblem("conflict_state", why)
            return store_report_and_news(connection, app_state, report)
        now = app_state.now()
        if not is_greeted:
            workers.record_hello(connection, job, Hello(worker, ""), now)
        jobs.notify_job_changed(connection, job)  # it may have finished
        # The machine is gone: its other news is old, and no Directive concerns it.
        _, reply = store_report(connection, report, now)
        return replace(reply, directive=None)


def check_own_worker(caller: WorkerPrincipal | BootstrapPrincipal, worker: str) -> None:
    """Refuse a message in the name of another worker."""
    if worker != caller.worker:
        raise ApiProblem("forbidden", f"this token speaks for {caller.worker}")


def job_of(connection: Connection, worker: str) -> str:
    """Return the job of a machine that still exists."""
    job = vms.job_of_existing_vm(connection, worker)
    if job is None:
        raise no_machine_problem(worker)
    return job


def visible_job_of(connection: Connection, user: UserPrincipal, worker: str) -> str:
    """Return the job that a machine belonged to, as far as a user may know of it."""
    job = vms.job_of_vm(connection, worker)
    project = None if job is None else jobs.project_of(connection, job)
    if job is None or project is None or not user.sees(project):
        raise ApiProblem("not_found", f"this controller never had a machine {worker}")
    return job


def storable_text(text: str) -> str:
    """Return text of a machine without NUL, which Postgres cannot store, and without secrets."""
    return EVENT_REDACTOR.clean(text.replace("\x00", ""))


def newest_directive(connection: Connection, job: str) -> Directive | None:
    """Return the newest Directive of a job."""
    published = directives.newest(connection, job)
    return None if published is None else published[0]


def store_report_and_news(
    connection: Connection, app_state: AppState, report: ValidatedReport
) -> Reply:
    """Store the rows of a machine that exists, and what else it reports."""
    message, now = report.message, app_state.now()
    stored, reply = store_report(connection, report, now)
    if not stored.exists:
        raise no_machine_problem(message.worker)
    job, directive = stored.job, stored.directive
    record_regrouped(connection, job, message, now)
    if directive is not None:
        record_divergences(connection, job, directive, message, now)
        record_stack_checks(connection, job, message, now)
        # Only the leader's metric counts: the others lag behind it or repeat it.
        if directive.members[0].worker == message.worker:
            measurements.record_reading(connection, job, directive, message.progress)
    if has_news(message, reply.directive):
        jobs.notify_job_changed(connection, job)
    return reply


def record_regrouped(connection: Connection, job: str, message: StepReport, now: datetime) -> None:
    """Record that the workers have entered a generation, when the first of them says so."""
    regrouped = message.regrouped
    if regrouped is None or not directives.record_regroup(connection, job, regrouped, now):
        return
    metrics.RESIZE_EVENTS.labels("entered").inc()
    metrics.RESIZE_SECONDS.observe(regrouped.pause)
    why = (
        f"generation {regrouped.generation} entered in {regrouped.pause:.3f} s, "
        f"{regrouped.iterations_lost} iterations lost"
    )
    facts = {"generation": regrouped.generation, "pause": regrouped.pause}
    record_event(connection, job, now, "regrouped", why, facts)


def record_divergences(
    connection: Connection, job: str, directive: Directive, message: StepReport, now: datetime
) -> None:
    """Record the first time that the loss or the target's metric is NaN or infinite."""
    worker, odd = message.worker, message.progress.not_finite
    if not odd:
        return
    for series in watched_series(directive.stop):
        found = odd.get(series)
        if found is None or not measurements.record_divergence(
            connection, job, worker, series, found, now
        ):
            continue
        why = f"{describe_divergence(series, worker, found)}; training goes on, as it may recover"
        facts = {"series": series, "value": found.value, "iteration": found.first}
        record_event(connection, job, now, "not_finite", why, {**facts, "worker": worker})


def record_stack_checks(
    connection: Connection, job: str, message: StepReport, now: datetime
) -> None:
    """Record what a worker found out about stacks, and say which it leaves out."""
    for check in message.progress.stack_checks:
        is_new = measurements.record_stack_check(connection, job, message.worker, check, now)
        if is_new and check.refusal:
            why = f"{message.worker} trains without {check.stack}: {check.refusal}"
            facts = {"stack": check.stack, "worker": message.worker}
            record_event(connection, job, now, "stack_refused", why, facts)
        if is_new and check.cache_trouble:
            why = f"{message.worker}: {check.cache_trouble}"
            facts = {"stack": check.stack, "worker": message.worker}
            record_event(connection, job, now, "cache_unusable", why, facts)


def has_news(message: StepReport, directive: Directive | None) -> bool:
    """Tell whether the reconciler should look at once: it may wait for the rows of a probe."""
    news = (message.regrouped, message.broken, message.refused, message.finished)
    is_probed = directive is not None and directive.purpose == "probe"
    return (is_probed and len(message.steps) > 0) or any(each is not None for each in news)
