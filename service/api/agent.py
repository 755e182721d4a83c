"""What workers say: hello, reports, leases, exits. The answer carries the newest Directive."""

from __future__ import annotations

from fastapi import APIRouter, Response
from pydantic import TypeAdapter
from sqlalchemy import Connection

from scavenger.protocol import Directive, Exit, Hello, Lease, Reply, StepReport
from service import ledger, meters
from service.api.description import refuses, takes
from service.api.intake import take_in
from service.api.refusal import Refusal
from service.api.sieve import Sieved, sift, understand
from service.api.world import Body, Here, Speaker, World
from service.db import directives, divergences, jobs, readings, regroups, vms, workers
from service.db.events import say
from service.reconciler.divergence import in_words, watched
from service.redactor import Redactor

router = APIRouter(prefix="/v1/agent", tags=["agent"])

HELLO, EXIT = TypeAdapter(Hello), TypeAdapter(Exit)
REDACTOR = Redactor()  # scripts print their environment when they fail
LONGEST_SENTENCE, LONGEST_TAIL = 500, 8000
REPLY, LEASE = TypeAdapter(Reply), TypeAdapter(Lease)


@router.post("/hello", response_model=Reply, openapi_extra=takes(Hello))
def hello(world: Here, body: Body, speaker: Speaker) -> Response:
    """A worker is up and can take part, or a server can serve; it may say so again and again."""
    message = understand(HELLO, body)
    own(speaker, message.worker)
    now = world.now()
    with world.engine.begin() as connection:
        job = job_of(connection, speaker)
        is_news = workers.address_of(connection, speaker) != message.address
        expected = workers.greet(connection, job, message, now)
        if is_news:
            say(connection, job, now, "hello", f"{speaker} is ready", {"worker": speaker})
        reply = compose(Reply(newest(connection, job), expected))
    if is_news:
        world.nudge()
    return reply


@router.post(
    "/report",
    response_model=Reply,
    openapi_extra={**takes(StepReport), **refuses("sequence_gap")},
)
def report(world: Here, body: Body, speaker: Speaker) -> Response:
    """Store what a worker measured, each row once."""
    sieved = sift(body)
    own(speaker, sieved.message.worker)
    with world.engine.begin() as connection:
        reply = hear(connection, world, sieved)
    if is_news(sieved.message, reply.directive):
        world.nudge()
    return compose(reply)


def hear(connection: Connection, world: World, sieved: Sieved) -> Reply:
    """Store a report of a machine that exists, rows and news."""
    message = sieved.message
    intake = take_in(connection, sieved, world.now())
    job, directive = intake.stored.job, intake.stored.directive
    if not intake.stored.exists:
        raise no_machine(message.worker)
    tell(connection, job, message, world)
    warn(connection, job, directive, message, world)
    note_reading(connection, job, directive, message)
    return intake.reply


@router.post("/lease", response_model=Lease)
def lease(world: Here, speaker: Speaker) -> Response:
    """Reserve more time for a machine, as far as the job's cap allows."""
    with world.engine.begin() as connection:
        job = jobs.find(connection, job_of(connection, speaker))
        assert job is not None
        is_over = job.phase.is_final or job.cancel_requested_at is not None
        cap = job.spec.limits.max_cost
        left = ledger.renew(connection, job.id, speaker, cap, world.now(), is_over=is_over)
    return json(LEASE.dump_json(Lease(max(left.total_seconds(), 0.0))))


@router.post(
    "/exit",
    response_model=dict[str, str],
    openapi_extra=takes(Exit),
)
def exit_(world: Here, body: Body, speaker: Speaker) -> Response:
    """The training command of a worker ended, for good or to be started again."""
    message = understand(EXIT, body)
    own(speaker, message.worker)
    now = world.now()
    with world.engine.begin() as connection:
        job = job_of(connection, speaker)
        how = clean(message.in_words)[:LONGEST_SENTENCE]
        if message.restarts:
            workers.note_restart(connection, speaker, now)
            why = f"{speaker} starts its command again: {how}"
            say(connection, job, now, "restart", why, {"worker": speaker, "code": message.code})
        elif vms.note_exit(connection, speaker, message.code, last_words(message), now):
            facts = {"worker": speaker, "code": message.code}
            say(connection, job, now, "exit", f"{speaker} ended: {how}", facts)
    world.nudge()
    return json(b"{}")


def last_words(message: Exit) -> str:
    """Return the last lines of a command, and under them what its supervisor knows besides."""
    return clean(f"{message.tail}\n{message.cause}".strip())[-LONGEST_TAIL:]


def clean(text: str) -> str:
    """Return text as Postgres can store it and people may read it."""
    return REDACTOR.clean(text.replace("\x00", ""))


def own(speaker: str, worker: str) -> None:
    """A machine speaks for itself only."""
    if worker != speaker:
        raise Refusal("forbidden", f"this token speaks for {speaker}")


def job_of(connection: Connection, worker: str) -> str:
    """Return the job of a machine that still exists."""
    job = vms.job_of(connection, worker)
    if job is None:
        raise no_machine(worker)
    return job


def no_machine(worker: str) -> Refusal:
    """Say that nobody listens to a machine."""
    return Refusal("forbidden", f"{worker} is no machine of a running job")


def tell(connection: Connection, job: str, message: StepReport, world: World) -> None:
    """Record the news of a report."""
    regrouped = message.regrouped
    if regrouped is None or not regroups.note(connection, job, regrouped, world.now()):
        return
    meters.RESIZES.labels("entered").inc()
    meters.RESIZE_SECONDS.observe(regrouped.pause)
    say(
        connection,
        job,
        world.now(),
        "regrouped",
        f"generation {regrouped.generation} entered in {regrouped.pause:.3f} s, "
        f"{regrouped.iterations_lost} iterations lost",
        {"generation": regrouped.generation, "pause": regrouped.pause},
    )


def warn(
    connection: Connection,
    job: str,
    directive: Directive | None,
    message: StepReport,
    world: World,
) -> None:
    """Tell the first time that the loss or the target's metric is NaN or infinite."""
    worker, odd = message.worker, message.progress.not_finite
    if directive is None or not odd:
        return
    for series in watched(directive.stop):
        found = odd.get(series)
        if found is None:
            continue
        if divergences.note(connection, job, worker, series, found, world.now()):
            why = f"{in_words(series, worker, found)}; training goes on, as it may recover"
            facts = {"series": series, "value": found.value, "iteration": found.first}
            say(connection, job, world.now(), "not_finite", why, {**facts, "worker": worker})


def note_reading(
    connection: Connection, job: str, directive: Directive | None, message: StepReport
) -> None:
    """Note the target's metric as the leader sees it; the others lag behind it or repeat it."""
    if directive is None or directive.members[0].worker != message.worker:
        return
    readings.note(connection, job, directive, message.progress)


def is_news(message: StepReport, directive: Directive | None) -> bool:
    """Whether the reconciler should look at once: rows of a probe may be all that it waits for."""
    notes = (message.regrouped, message.broken, message.refused, message.finished)
    is_probed = directive is not None and directive.purpose == "probe"
    return (is_probed and len(message.steps) > 0) or any(note is not None for note in notes)


def newest(connection: Connection, job: str) -> Directive | None:
    """Return what the workers of a job were told last."""
    told = directives.newest(connection, job)
    return None if told is None else told[0]


def compose(reply: Reply) -> Response:
    """Answer with the newest Directive."""
    return json(REPLY.dump_json(reply))


def json(content: bytes) -> Response:
    """Wrap JSON that is ready."""
    return Response(content, media_type="application/json")
