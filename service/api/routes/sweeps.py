"""Sweeps of the garbage collector: list them, and confirm what one held back."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from sqlalchemy import Connection

from scavenger.schemas.machines import SweepList, SweepView
from service.api.dependencies import AppState, State
from service.api.idempotency import IdempotentRequestDep
from service.api.openapi import REPLAYED_HEADER, answers_problems, page_responses
from service.api.pagination import Page
from service.api.problems import ApiProblem
from service.api.security import INSTALLATION_OPERATOR, GuardedRoute
from service.db import sweeps
from service.db.idempotency import StoredAnswer

router = APIRouter(prefix="/v1/sweeps", tags=["sweeps"], route_class=GuardedRoute)


def to_integer(value: object) -> object:
    """Return a number without its empty fraction: to JSON 7.0 is a whole number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


SweepNumber = Annotated[int, Field(ge=1, le=2**53), BeforeValidator(to_integer)]


class Confirmation(BaseModel):
    """An operator has seen what a sweep held back, the newest if none is named."""

    model_config = ConfigDict(strict=True, extra="forbid")

    confirm: Annotated[bool, Field(json_schema_extra={"const": True})]
    sweep: SweepNumber | None = None


@router.get("", responses=page_responses("list_sweeps"), dependencies=[INSTALLATION_OPERATOR])
def list_sweeps(app_state: State, page: Page) -> SweepList:
    """List sweeps, newest first."""
    before = page.number("sweeps")
    with app_state.engine.connect() as connection:
        found = sweeps.newest(connection, page.limit + 1, before)
    shown, following = page.split("sweeps", found, lambda last: (last.number,))
    return SweepList(sweeps=list(shown), next_cursor=following)


@router.post(
    "",
    status_code=202,
    response_model=SweepView,
    responses={202: {"headers": REPLAYED_HEADER}},
    openapi_extra=answers_problems("not_found", "nothing_held"),
    dependencies=[INSTALLATION_OPERATOR],
)
def confirm(
    app_state: State, confirmation: Confirmation, idempotent: IdempotentRequestDep
) -> Response:
    """Let the next sweeps end what this one held back."""
    if not confirmation.confirm:
        raise ApiProblem("validation", "confirm must be true; GET /v1/sweeps only shows them")
    return idempotent.run_once(app_state, partial(confirm_sweep, app_state, confirmation.sweep))


def confirm_sweep(app_state: AppState, number: int | None, connection: Connection) -> StoredAnswer:
    """Store that an operator agrees, and return the answer that shows the sweep."""
    if number is None:
        number = next((sweep.number for sweep in sweeps.newest(connection, 1)), 0)
    found = sweeps.find(connection, number)
    if found is None:
        raise ApiProblem("not_found", "there is no such sweep; GET /v1/sweeps lists them")
    if found.tripped is None:
        raise ApiProblem("nothing_held", f"sweep {number} held nothing back")
    sweeps.confirm(connection, number, app_state.now())
    confirmed = sweeps.find(connection, number)
    assert confirmed is not None
    return StoredAnswer(202, confirmed.model_dump_json(), {})
