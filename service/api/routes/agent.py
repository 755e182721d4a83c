"""Endpoints of workers: hello, report, lease, exit. Replies carry the newest Directive."""

from __future__ import annotations

from fastapi import APIRouter, Response
from pydantic import TypeAdapter
from sqlalchemy import Connection

from scavenger.protocol import CommandExit, Directive, Hello, Reply, StepReport, VmLease
from service import ledger
from service.api.dependencies import AppState, CurrentWorker, RequestBody, State
from service.api.openapi import answers_problems, request_body
from service.api.problems import ApiProblem
from service.api.telemetry import ValidatedReport, parse_message, parse_report, store_report
from service.db import directives, jobs, measurements, vms, workers
from service.db.jobs import record_event
from service.observability import metrics
from service.observability.redaction import Redactor
from service.state.job_state import describe_divergence, watched_series

router = APIRouter(prefix="/v1/agent", tags=["agent"])

HELLO_BODY, EXIT_BODY = TypeAdapter(Hello), TypeAdapter(CommandExit)
EVENT_REDACTOR = Redactor()  # scripts print their environment when they fail
MAX_SENTENCE, MAX_TAIL = 500, 8000
REPLY_BODY, LEASE_BODY = TypeAdapter(Reply), TypeAdapter(VmLease)


@router.post("/hello", response_model=Reply, openapi_extra=request_body(Hello))
def hello(app_state: State, body: RequestBody, worker_id: CurrentWorker) -> Response:
    """A worker is up and can take part, or a server can serve; it may say so again and again."""
    message = parse_message(HELLO_BODY, body)
    check_own_worker(worker_id, message.worker)
    now = app_state.now()
    with app_state.engine.begin() as connection:
        job = job_of(connection, worker_id)
        is_news = workers.address_of(connection, worker_id) != message.address
        expected = workers.record_hello(connection, job, message, now)
        if is_news:
            record_event(
                connection, job, now, "hello", f"{worker_id} is ready", {"worker": worker_id}
            )
        reply = reply_response(Reply(newest_directive(connection, job), expected))
    if is_news:
        app_state.nudge()
    return reply


@router.post(
    "/report",
    response_model=Reply,
    openapi_extra={**request_body(StepReport), **answers_problems("sequence_gap")},
)
def report(app_state: State, body: RequestBody, worker_id: CurrentWorker) -> Response:
    """Store what a worker measured, each row once."""
    report = parse_report(body)
    check_own_worker(worker_id, report.message.worker)
    with app_state.engine.begin() as connection:
        reply = store_report_and_news(connection, app_state, report)
    if has_news(report.message, reply.directive):
        app_state.nudge()
    return reply_response(reply)


def store_report_and_news(
    connection: Connection, app_state: AppState, report: ValidatedReport
) -> Reply:
    """Store a report of a machine that exists, rows and news."""
    message = report.message
    intake = store_report(connection, report, app_state.now())
    job, directive = intake.stored.job, intake.stored.directive
    if not intake.stored.exists:
        raise no_machine_problem(message.worker)
    record_regrouped(connection, job, message, app_state)
    record_divergences(connection, job, directive, message, app_state)
    record_metric(connection, job, directive, message)
    return intake.reply


@router.post("/lease", response_model=VmLease)
def lease(app_state: State, worker_id: CurrentWorker) -> Response:
    """Reserve more time for a machine, as far as the job's cap allows."""
    with app_state.engine.begin() as connection:
        job = jobs.find(connection, job_of(connection, worker_id))
        assert job is not None
        is_over = job.phase.is_final or job.cancel_requested_at is not None
        cap = job.spec.limits.max_cost
        left = ledger.renew_lease(
            connection, job.id, worker_id, cap, app_state.now(), is_over=is_over
        )
    return json_response(LEASE_BODY.dump_json(VmLease(max(left.total_seconds(), 0.0))))


@router.post(
    "/exit",
    response_model=dict[str, str],
    openapi_extra=request_body(CommandExit),
)
def exit_(app_state: State, body: RequestBody, worker_id: CurrentWorker) -> Response:
    """The training command of a worker ended, for good or to be started again."""
    message = parse_message(EXIT_BODY, body)
    check_own_worker(worker_id, message.worker)
    now = app_state.now()
    with app_state.engine.begin() as connection:
        job = job_of(connection, worker_id)
        how = storable_text(message.in_words)[:MAX_SENTENCE]
        if message.restarts:
            workers.record_restart(connection, worker_id, now)
            why = f"{worker_id} starts its command again: {how}"
            record_event(
                connection, job, now, "restart", why, {"worker": worker_id, "code": message.code}
            )
        elif vms.record_exit(connection, worker_id, message.code, exit_tail(message), now):
            facts = {"worker": worker_id, "code": message.code}
            record_event(connection, job, now, "exit", f"{worker_id} ended: {how}", facts)
    app_state.nudge()
    return json_response(b"{}")


def exit_tail(message: CommandExit) -> str:
    """Return the last lines of a command, and under them what its supervisor knows besides."""
    return storable_text(f"{message.tail}\n{message.cause}".strip())[-MAX_TAIL:]


def storable_text(text: str) -> str:
    """Return text as Postgres can store it and people may read it."""
    return EVENT_REDACTOR.clean(text.replace("\x00", ""))


def check_own_worker(worker_id: str, worker: str) -> None:
    """A machine speaks for itself only."""
    if worker != worker_id:
        raise ApiProblem("forbidden", f"this token speaks for {worker_id}")


def job_of(connection: Connection, worker: str) -> str:
    """Return the job of a machine that still exists."""
    job = vms.running_job_of(connection, worker)
    if job is None:
        raise no_machine_problem(worker)
    return job


def no_machine_problem(worker: str) -> ApiProblem:
    """Say that nobody listens to a machine."""
    return ApiProblem("forbidden", f"{worker} is no machine of a running job")


def record_regrouped(
    connection: Connection, job: str, message: StepReport, app_state: AppState
) -> None:
    """Record the news of a report."""
    regrouped = message.regrouped
    if regrouped is None or not directives.record_regroup(
        connection, job, regrouped, app_state.now()
    ):
        return
    metrics.RESIZE_EVENTS.labels("entered").inc()
    metrics.RESIZE_SECONDS.observe(regrouped.pause)
    record_event(
        connection,
        job,
        app_state.now(),
        "regrouped",
        f"generation {regrouped.generation} entered in {regrouped.pause:.3f} s, "
        f"{regrouped.iterations_lost} iterations lost",
        {"generation": regrouped.generation, "pause": regrouped.pause},
    )


def record_divergences(
    connection: Connection,
    job: str,
    directive: Directive | None,
    message: StepReport,
    app_state: AppState,
) -> None:
    """Tell the first time that the loss or the target's metric is NaN or infinite."""
    worker, odd = message.worker, message.progress.not_finite
    if directive is None or not odd:
        return
    for series in watched_series(directive.stop):
        found = odd.get(series)
        if found is None:
            continue
        if measurements.record_divergence(connection, job, worker, series, found, app_state.now()):
            why = (
                f"{describe_divergence(series, worker, found)}; training goes on, as it may recover"
            )
            facts = {"series": series, "value": found.value, "iteration": found.first}
            record_event(
                connection, job, app_state.now(), "not_finite", why, {**facts, "worker": worker}
            )


def record_metric(
    connection: Connection, job: str, directive: Directive | None, message: StepReport
) -> None:
    """Note the target's metric as the leader sees it; the others lag behind it or repeat it."""
    if directive is None or directive.members[0].worker != message.worker:
        return
    measurements.record_reading(connection, job, directive, message.progress)


def has_news(message: StepReport, directive: Directive | None) -> bool:
    """Whether the reconciler should look at once: rows of a probe may be all that it waits for."""
    notes = (message.regrouped, message.broken, message.refused, message.finished)
    is_probed = directive is not None and directive.purpose == "probe"
    return (is_probed and len(message.steps) > 0) or any(note is not None for note in notes)


def newest_directive(connection: Connection, job: str) -> Directive | None:
    """Return what the workers of a job were told last."""
    told = directives.newest(connection, job)
    return None if told is None else told[0]


def reply_response(reply: Reply) -> Response:
    """Answer with the newest Directive."""
    return json_response(REPLY_BODY.dump_json(reply))


def json_response(content: bytes) -> Response:
    """Wrap JSON that is ready."""
    return Response(content, media_type="application/json")
