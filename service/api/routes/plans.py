"""Plans: what would become of a job document, before anything is spent."""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta

from fastapi import APIRouter, Response
from sqlalchemy import Connection

from scavenger.job.spec import JobSpec
from scavenger.schemas.plans import PLAN_ID_PREFIX, PlanView
from service.api.dependencies import AppState, State
from service.api.idempotency import IdempotentRequestDep
from service.api.openapi import LOCATION_HEADER, REPLAYED_HEADER, answers_problems, request_body
from service.api.problems import ApiProblem
from service.api.routes.jobs import (
    JOB_EXAMPLE,
    JobDocument,
    check_code,
    check_secrets,
    complete_job,
)
from service.api.security import GuardedRoute, Submitter, Viewer
from service.api.validation import storable
from service.db import plans
from service.db.idempotency import StoredAnswer
from service.db.prices import read_price_book
from service.state.curves import config_view, curve_view
from service.state.plans import check_plan, load_knowledge_for, plan_job, search_view
from service.state.presenters import money_view

router = APIRouter(prefix="/v1/plans", tags=["plans"], route_class=GuardedRoute)

PLAN_LIFETIME = timedelta(minutes=15)
NO_SUCH_PLAN = "there is no plan of that id; POST /v1/plans makes one"


@router.post(
    "",
    status_code=201,
    response_model=PlanView,
    responses={201: {"headers": {**LOCATION_HEADER, **REPLAYED_HEADER}}},
    openapi_extra=request_body(
        JobSpec, "application/json", "application/yaml", example=JOB_EXAMPLE
    ),
)
def create_plan(
    app_state: State, user: Submitter, document: JobDocument, idempotent: IdempotentRequestDep
) -> Response:
    """Say what would become of a job document: options, choice, search and cap.

    Nothing is launched and nothing is spent. The plan can be submitted for 15 minutes.
    """
    project = user.own_project
    check_secrets(app_state, project, document)
    spec, now = complete_job(app_state, document), app_state.now()

    def store_plan(connection: Connection) -> StoredAnswer:
        check_code(connection, project, spec, now)
        as_of = None if document.price is not None else prices_as_of(app_state, connection, spec)
        view = make_plan(app_state, connection, project, spec, now, as_of)
        plans.store(connection, project, spec, view, now)
        return StoredAnswer(201, view.model_dump_json(), {"Location": f"/v1/plans/{view.id}"})

    return idempotent.run_once(app_state, store_plan)


@router.get("/{plan}", openapi_extra=answers_problems("not_found"))
def get_plan(app_state: State, user: Viewer, plan: str) -> PlanView:
    """Show a plan, for a day after it expired."""
    with app_state.engine.connect() as connection:
        found = plans.find(connection, storable(plan))
    if found is None or not user.sees(found.project):
        raise ApiProblem("not_found", NO_SUCH_PLAN)
    return found.view


def make_plan(
    app_state: AppState,
    connection: Connection,
    project: str,
    spec: JobSpec,
    now: datetime,
    prices_of: datetime | None,
) -> PlanView:
    """Return the plan of a job whose price and machines are written down."""
    change_seconds = app_state.clouds.traits_of(spec).resize_seconds
    known = load_knowledge_for(connection, app_state.machine_type, project, spec, change_seconds)
    planned = plan_job(spec, known)
    curve = curve_view(planned.curve, spec, planned.choice, planned.why, now)
    cap, warning = spec.limits.max_cost, app_state.storage.warning(spec)
    return PlanView(
        id=f"{PLAN_ID_PREFIX}{int(now.timestamp() * 1000):011x}{secrets.token_hex(4)}",
        created_at=now,
        expires_at=now + PLAN_LIFETIME,
        name=spec.name,
        model_key=spec.model.key,
        curve=curve,
        choice=None if planned.choice is None else config_view(planned.choice),
        why=planned.why,
        search=search_view(planned.search),
        cap=None if cap is None else money_view(cap),
        checks=[*check_plan(spec, planned, curve), *([] if warning is None else [warning])],
        prices_as_of=prices_of,
        would_reuse=planned.reused_jobs,
    )


def prices_as_of(app_state: AppState, connection: Connection, spec: JobSpec) -> datetime | None:
    """Return when the oldest price was so of what a job's machines are made of."""
    book = read_price_book(connection, app_state.clouds.priced_regions)
    traits = app_state.clouds.traits_of(spec)
    return book.as_of(traits.priced, spec.machine_type or traits.machine_type)
