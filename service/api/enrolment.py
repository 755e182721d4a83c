"""Enrolment: a machine that came up gets a token of its own for the one it was launched with.

What a machine is launched with can be read by others, on some clouds by everything that runs on it.
So that is worth one exchange, soon after the launch, and the answer may be lost: whoever asks again
with the same word gets the same again, and anybody else nothing.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from fastapi import APIRouter, Response
from pydantic import TypeAdapter
from sqlalchemy import Connection

from scavenger.protocol import Enrol, Enrolled
from service.api.agent import clean, json, newest, own
from service.api.description import takes
from service.api.refusal import Refusal
from service.api.sieve import understand
from service.api.world import Body, Fresh, Here, Keychain, World
from service.db import enrolments, jobs, vms
from service.db.events import say
from service.db.jobs import Job

router = APIRouter(prefix="/v1/agent", tags=["agent"])

ENROL, ENROLLED = TypeAdapter(Enrol), TypeAdapter(Enrolled)
IN_TIME = timedelta(minutes=10)


@router.post("/enrol", response_model=Enrolled, openapi_extra=takes(Enrol))
def enrol(world: Here, body: Body, fresh: Fresh, keychain: Keychain) -> Response:
    """Give a machine its token, and the secrets of its job."""
    message = understand(ENROL, body)
    own(fresh, message.worker)
    now = world.now()
    with world.engine.begin() as connection:
        job = job_in_time(connection, world, fresh, now)
        is_first = enrolments.enrol(connection, fresh, clean(message.nonce), now)
        if not is_first:
            why = f"somebody else asked for the token of {fresh}, which has it already: refused"
            say(connection, job.id, now, "enrolment_refused", why, {"worker": fresh})
        secrets = told_secrets(connection, world, job, now) if is_first else {}
        directive = newest(connection, job.id)
    if not is_first:
        raise Refusal("forbidden", f"{fresh} has its token already")
    token = keychain.issue(fresh, 0 if directive is None else directive.generation, now.timestamp())
    return json(ENROLLED.dump_json(Enrolled(token, keychain.share(job.id), secrets)))


def job_in_time(connection: Connection, world: World, worker: str, now: datetime) -> Job:
    """Return the job of a machine that was launched not long ago, or refuse."""
    job = vms.job_of(connection, worker)
    attempted_at = vms.attempted_at_of(connection, worker)
    found = None if job is None else jobs.find(connection, job)
    if found is None or attempted_at is None:
        raise Refusal("forbidden", f"{worker} is no machine of a running job")
    if now > attempted_at + IN_TIME + timedelta(seconds=world.boot):
        raise Refusal("forbidden", f"{worker} was launched too long ago to come up now")
    return found


def told_secrets(connection: Connection, world: World, job: Job, now: datetime) -> dict[str, str]:
    """Return the secrets of a job, and tell about those that are gone."""
    names = job.spec.run.secrets
    for name in world.vault.missing(job.project, names):
        why = f"there is no secret {name} of the project {job.project} any more"
        say(connection, job.id, now, "secret_missing", why, {"name": name})
    return dict(world.vault.open(job.project, names))
