"""Enrolment: a machine that has booted exchanges its bootstrap token for a worker token.

On some clouds every process of the machine can read what it was launched with. The bootstrap token
is therefore worth one exchange, soon after the launch. The answer may get lost: the same nonce gets
the same answer again, any other nonce is refused.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from fastapi import APIRouter, Response
from pydantic import TypeAdapter
from sqlalchemy import Connection

from scavenger.protocol import EnrolmentCredentials, EnrolmentRequest
from service.api.dependencies import AppState, BootstrapWorker, RequestBody, SigningKeys, State
from service.api.openapi import request_body
from service.api.problems import ApiProblem
from service.api.routes.agent import (
    check_own_worker,
    json_response,
    newest_directive,
    storable_text,
)
from service.api.telemetry import parse_message
from service.db import jobs, vms, workers
from service.db.jobs import StoredJob, record_event

router = APIRouter(prefix="/v1/agent", tags=["agent"])

ENROL_BODY, ENROLLED_BODY = TypeAdapter(EnrolmentRequest), TypeAdapter(EnrolmentCredentials)
ENROLMENT_WINDOW = timedelta(minutes=10)


@router.post(
    "/enrol", response_model=EnrolmentCredentials, openapi_extra=request_body(EnrolmentRequest)
)
def enrol(
    app_state: State, body: RequestBody, worker_id: BootstrapWorker, keychain: SigningKeys
) -> Response:
    """Give a machine its token, and the secrets of its job."""
    message = parse_message(ENROL_BODY, body)
    check_own_worker(worker_id, message.worker)
    now = app_state.now()
    with app_state.engine.begin() as connection:
        job = job_of_new_machine(connection, app_state, worker_id, now)
        is_first = workers.record_enrolment(
            connection, worker_id, storable_text(message.nonce), now
        )
        if not is_first:
            why = f"somebody else asked for the token of {worker_id}, which has it already: refused"
            record_event(connection, job.id, now, "enrolment_refused", why, {"worker": worker_id})
        secrets = secrets_for(connection, app_state, job, now) if is_first else {}
        directive = newest_directive(connection, job.id)
    if not is_first:
        raise ApiProblem("forbidden", f"{worker_id} has its token already")
    token = keychain.issue_worker_token(
        worker_id, 0 if directive is None else directive.generation, now.timestamp()
    )
    return json_response(
        ENROLLED_BODY.dump_json(EnrolmentCredentials(token, keychain.job_secret(job.id), secrets))
    )


def job_of_new_machine(
    connection: Connection, app_state: AppState, worker: str, now: datetime
) -> StoredJob:
    """Return the job of a machine that was launched not long ago, or refuse."""
    job = vms.running_job_of(connection, worker)
    attempted_at = vms.last_attempt_of(connection, worker)
    found = None if job is None else jobs.find(connection, job)
    if found is None or attempted_at is None:
        raise ApiProblem("forbidden", f"{worker} is no machine of a running job")
    if now > attempted_at + ENROLMENT_WINDOW + timedelta(seconds=app_state.boot):
        raise ApiProblem("forbidden", f"{worker} was launched too long ago to come up now")
    return found


def secrets_for(
    connection: Connection, app_state: AppState, job: StoredJob, now: datetime
) -> dict[str, str]:
    """Return the secrets of a job, and tell about those that are gone."""
    names = job.spec.run.secrets
    for name in app_state.secret_store.missing(job.project, names):
        why = f"there is no secret {name} of the project {job.project} any more"
        record_event(connection, job.id, now, "secret_missing", why, {"name": name})
    return dict(app_state.secret_store.open(job.project, names))
