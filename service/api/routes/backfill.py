"""Backfill: uploads telemetry that was spooled while the controller was unreachable.

``scavenger agent sync`` sends the reports of a spool here, even after the machine is gone.
"""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter, Response
from sqlalchemy import Connection

from scavenger.protocol import Hello, Reply, StepReport
from service.api.dependencies import AppState, CurrentUser, RequestBody, State
from service.api.openapi import answers_problems, request_body
from service.api.problems import ApiProblem
from service.api.routes.agent import reply_response, store_report_and_news
from service.api.telemetry import ValidatedReport, parse_report, store_report
from service.db import jobs, vms, workers

router = APIRouter(prefix="/v1", tags=["agent"])


@router.post(
    "/telemetry/backfill",
    response_model=Reply,
    openapi_extra={
        **request_body(StepReport),
        **answers_problems("not_found", "sequence_gap", "conflict_state"),
    },
)
# Agents of version 1 upload to the old path; they run for as long as their job does.
@router.post("/deliveries", include_in_schema=False, response_model=Reply)
def backfill(app_state: State, user: CurrentUser, body: RequestBody) -> Response:
    """Store a report of a spool, each row once."""
    report = parse_report(body)
    worker = report.message.worker
    with app_state.engine.begin() as connection:
        job = vms.job_ever_of(connection, worker)
        project = None if job is None else jobs.project_of(connection, job)
        if job is None or project is None or not user.sees(project):
            raise ApiProblem("not_found", f"this controller never had a machine {worker}")
        is_greeted = workers.address_of(connection, worker) is not None
        if vms.running_job_of(connection, worker) is None:
            return reply_response(
                store_late_report(connection, app_state, job, report, is_greeted=is_greeted)
            )
        if not is_greeted:
            why = f"{worker} may still come up; deliver its rows when its job has ended"
            raise ApiProblem("conflict_state", why)
        return reply_response(store_report_and_news(connection, app_state, report))


def store_late_report(
    connection: Connection,
    app_state: AppState,
    job: str,
    report: ValidatedReport,
    *,
    is_greeted: bool,
) -> Reply:
    """Store the rows of a machine that is gone; its news is old, nobody acts on it."""
    now = app_state.now()
    if not is_greeted:
        workers.record_hello(connection, job, Hello(report.message.worker, ""), now)
    return replace(store_report(connection, report, now).reply, directive=None)
