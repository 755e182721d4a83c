"""Orders: resize, probe, pause, resume, and change the limits of a running job.

A route stores a wish, and the next tick obeys it. What can be refused is refused here, with the
nearest thing that would do; what changes until the tick is refused there, and the order says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Body, Response
from sqlalchemy import Connection

from scavenger.errors import DocumentProblem
from scavenger.schemas.orders import (
    WISHES,
    ChangeRequest,
    GridPoint,
    OrderKind,
    OrderList,
    OrderView,
    PauseRequest,
    PauseWish,
    ProbeRequest,
    ProbeWish,
    ResizeRequest,
    ResizeWish,
    ResumeRequest,
    Wish,
)
from service.api.dependencies import AppState, State
from service.api.etag import IfMatch, JobETag
from service.api.idempotency import IdempotentRequestDep
from service.api.openapi import (
    ETAG_HEADER,
    REPLAYED_HEADER,
    ResponseDocs,
    answers_problems,
    page_responses,
)
from service.api.pagination import Page
from service.api.problems import ApiProblem
from service.api.routes.jobs import check_version, find_job, job_views
from service.api.security import VIEWER, GuardedRoute, Submitter
from service.db import jobs, orders
from service.db.idempotency import StoredAnswer
from service.db.jobs import StoredJob, record_event
from service.state.job_state import JobState
from service.state.loader import load_job_states
from service.state.order_checks import OrderObjection, find_objection, over_objection
from service.state.orders import describe_wish
from service.state.presenters import order_view

router = APIRouter(prefix="/v1/jobs", tags=["orders"], route_class=GuardedRoute)

ORDER_RESPONSES: ResponseDocs = {
    202: {
        "headers": {**ETAG_HEADER, **REPLAYED_HEADER},
        "links": {
            name: {"operationId": name, "parameters": {"job": "$response.body#/job"}}
            for name in ("get_job", "get_orders", "cancel")
        },
    }
}
ORDER_PROBLEMS = answers_problems("not_found", "conflict_state", "precondition_failed")
PAUSE, RESUME = PauseRequest(), ResumeRequest()
MAX_ORDERS = 1000  # of one job: each tick reads those that stand, and a loop may send any number

OrderBody = ResizeRequest | ProbeRequest | PauseRequest | ResumeRequest | ChangeRequest


@router.post(
    "/{job}/actions/resize",
    status_code=202,
    response_model=OrderView,
    responses=ORDER_RESPONSES,
    openapi_extra=ORDER_PROBLEMS,
)
def resize(
    app_state: State,
    user: Submitter,
    job: str,
    wish: ResizeRequest,
    idempotent: IdempotentRequestDep,
    seen: IfMatch = None,
) -> Response:
    """Order another configuration, or the objective that is chosen by from now on."""
    order = OrderRequest("resize", wish, user.token, seen)
    return idempotent.run_once(app_state, partial(give_order, app_state, job, order))


@router.post(
    "/{job}/actions/probe",
    status_code=202,
    response_model=OrderView,
    responses=ORDER_RESPONSES,
    openapi_extra=ORDER_PROBLEMS,
)
def probe(
    app_state: State,
    user: Submitter,
    job: str,
    wish: ProbeRequest,
    idempotent: IdempotentRequestDep,
    seen: IfMatch = None,
) -> Response:
    """Order that a configuration is measured once; the job then goes back to where it was."""
    order = OrderRequest("probe", wish, user.token, seen)
    return idempotent.run_once(app_state, partial(give_order, app_state, job, order))


@router.post(
    "/{job}/actions/pause",
    status_code=202,
    response_model=OrderView,
    responses=ORDER_RESPONSES,
    openapi_extra=ORDER_PROBLEMS,
)
def pause(
    app_state: State,
    user: Submitter,
    job: str,
    idempotent: IdempotentRequestDep,
    wish: Annotated[PauseRequest, Body()] = PAUSE,
    seen: IfMatch = None,
) -> Response:
    """Order that a job saves a checkpoint and ends all its machines until it is resumed."""
    order = OrderRequest("pause", wish, user.token, seen)
    return idempotent.run_once(app_state, partial(give_order, app_state, job, order))


@router.post(
    "/{job}/actions/resume",
    status_code=202,
    response_model=OrderView,
    responses=ORDER_RESPONSES,
    openapi_extra=ORDER_PROBLEMS,
)
def resume(
    app_state: State,
    user: Submitter,
    job: str,
    idempotent: IdempotentRequestDep,
    wish: Annotated[ResumeRequest, Body()] = RESUME,
    seen: IfMatch = None,
) -> Response:
    """Order that a paused job goes on from its checkpoint."""
    order = OrderRequest("resume", wish, user.token, seen)
    return idempotent.run_once(app_state, partial(give_order, app_state, job, order))


@router.patch(
    "/{job}",
    status_code=202,
    response_model=OrderView,
    responses=ORDER_RESPONSES,
    openapi_extra=ORDER_PROBLEMS,
)
def change(
    app_state: State,
    user: Submitter,
    job: str,
    wish: ChangeRequest,
    idempotent: IdempotentRequestDep,
    seen: IfMatch = None,
) -> Response:
    """Change max_cost, max_time or the objective of a job; it holds from this answer on."""
    order = OrderRequest("change", wish, user.token, seen)
    return idempotent.run_once(app_state, partial(give_order, app_state, job, order))


@router.get(
    "/{job}/orders",
    responses=page_responses("get_orders", job="$request.path.job"),
    openapi_extra=answers_problems("not_found"),
    dependencies=[VIEWER],
)
def get_orders(app_state: State, page: Page, job: str) -> OrderList:
    """List the orders of a job, newest first."""
    name = f"orders of {job}"
    before = page.number(name)
    with app_state.engine.connect() as connection:
        find_job(connection, job)
        found = orders.orders_before(connection, job, before, page.limit + 1)
    shown, following = page.split(name, found, lambda last: (last.number,))
    return OrderList(orders=[order_view(order) for order in shown], next_cursor=following)


@dataclass(frozen=True, slots=True)
class OrderRequest:
    """What a user asks of a job.

    Attributes:
        body: The wish with its reason.
        by: Id of the user's token.
        seen: The condition of If-Match.
    """

    kind: OrderKind
    body: OrderBody
    by: str
    seen: str | None

    @property
    def wish(self) -> Wish:
        """The wish, without its reason."""
        sent = self.body.model_dump(mode="json", exclude_unset=True, exclude={"reason"})
        return WISHES[self.kind].model_validate(sent)


def give_order(
    app_state: AppState, job: str, request: OrderRequest, connection: Connection
) -> StoredAnswer:
    """Store an order that can be obeyed as far as is known now, and return the answer with it."""
    find_job(connection, job)
    # Nothing may be decided between the comparison of versions and the order, nor may a machine
    # reserve money between the comparison with a new cap and that cap.
    jobs.lock_for_change(connection, job)
    found, now = find_job(connection, job), app_state.now()
    refuse_if_over(found)
    check_version(app_state, connection, found, request.seen)
    state = load_state(app_state, connection, found)
    wish = with_stack_of(state, request.wish)
    objection = find_objection(state, wish, app_state.storage.location(job, found.spec))
    if objection is not None:
        raise problem_of(objection)
    # A pause saves money, and none follows another without a resume between them.
    is_bounded = not isinstance(wish, PauseWish)
    if is_bounded and orders.last_number(connection, job) >= MAX_ORDERS:
        why = f"{job} was given {MAX_ORDERS} orders and takes no more: cancel it, and submit it"
        raise ApiProblem("conflict_state", f"{why} again as you want it")
    order = orders.give_order(
        connection, job, request.kind, wish, reason=request.body.reason, by=request.by, now=now
    )
    said = f"order {order.number}: {describe_wish(wish)}"
    because = f" ({order.reason})" if order.reason else ""
    facts = {"order": order.number, "by": order.by}
    record_event(connection, job, now, "order", f"{said}{because}", facts)
    jobs.notify_job_changed(connection, job)
    (view,) = job_views(app_state, connection, [found])
    headers = {"ETag": str(JobETag.of(view))}
    return StoredAnswer(202, order_view(order).model_dump_json(), headers)


def with_stack_of(state: JobState, wish: Wish) -> Wish:
    """Let a wish that names a configuration without a stack mean the stack that a job has."""
    now = state.job.chosen or (state.directive.config if state.directive else None)
    stack = state.knowledge.space.start.stack if now is None else now.stack
    match wish:
        case ProbeWish():
            return wish.or_stack(stack)
        case ResizeWish(to=GridPoint() as point):
            return ResizeWish(to=point.or_stack(stack))
        case _:
            return wish


def refuse_if_over(job: StoredJob) -> None:
    """Refuse an order of a job that takes none any more, of any version of it that was seen."""
    if (over := over_objection(job)) is not None:
        raise problem_of(over)


def load_state(app_state: AppState, connection: Connection, job: StoredJob) -> JobState:
    """Return what is known of a job, with what its machines cost and how long they boot."""
    (state,) = load_job_states(connection, app_state.machine_type, [job], app_state.now())
    boot = timedelta(seconds=app_state.clouds.traits_of(job.spec).max_boot_seconds)
    return replace(state, boot=boot, places=app_state.clouds.places_for(job.spec))


def problem_of(objection: OrderObjection) -> ApiProblem:
    """Return the answer to an order that cannot be obeyed."""
    if objection.about == "job":
        return ApiProblem("conflict_state", objection.why)
    problem = DocumentProblem(objection.field, objection.why)
    return ApiProblem("validation", objection.why, [problem])
