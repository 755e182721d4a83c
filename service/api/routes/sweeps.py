"""Sweeps of the garbage collector: list them, and confirm what one held back."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter
from sqlalchemy import Connection

from scavenger.schemas import OrphanView, SweepList, SweepView
from service.api.dependencies import RequestBody, State
from service.api.idempotency import OncePerKey
from service.api.openapi import REPLAYED_HEADER, answers_problems, page_responses, request_body
from service.api.pagination import PageCursor, PageCursors, PageLimit
from service.api.problems import ApiProblem
from service.api.telemetry import parse_message
from service.db import sweeps
from service.db.access import StoredAnswer
from service.db.sweeps import Sweep

router = APIRouter(prefix="/v1/sweeps", tags=["sweeps"])

MAX_CONFIRMATION_BYTES = 4096


def to_integer(value: object) -> object:
    """Return a number without its empty fraction: to JSON 7.0 is a whole number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


SWEEP_POSITION = TypeAdapter(tuple[int])

SweepNumber = Annotated[int, Field(ge=1, le=2**53), BeforeValidator(to_integer)]


class Confirmation(BaseModel):
    """Somebody has seen what a sweep held back, the newest if none is named."""

    model_config = ConfigDict(strict=True, extra="forbid")

    confirm: Annotated[bool, Field(json_schema_extra={"const": True})]
    sweep: SweepNumber | None = None


CONFIRMATION_BODY = TypeAdapter(Confirmation)


@router.get("", responses=page_responses("list_sweeps"))
def list_sweeps(
    app_state: State, pages: PageCursors, limit: PageLimit = 50, cursor: PageCursor = None
) -> SweepList:
    """List sweeps, newest first."""
    before = None if cursor is None else pages.read("sweeps", cursor, SWEEP_POSITION)[0]
    with app_state.engine.connect() as connection:
        found = sweeps.newest(connection, limit + 1, before)
    following = pages.write("sweeps", found[limit - 1].number) if len(found) > limit else None
    return SweepList(sweeps=[sweep_view(sweep) for sweep in found[:limit]], next_cursor=following)


@router.post(
    "",
    status_code=202,
    response_model=SweepView,
    responses={202: {"headers": REPLAYED_HEADER}},
    openapi_extra={**request_body(Confirmation), **answers_problems("not_found", "nothing_held")},
)
def confirm(app_state: State, body: RequestBody, once: OncePerKey) -> Response:
    """Let what a sweep held back be ended by the next ones."""
    if len(body) > MAX_CONFIRMATION_BYTES:
        raise ApiProblem(
            "payload_too_large", f"a confirmation has at most {MAX_CONFIRMATION_BYTES} bytes"
        )
    confirmation = parse_message(CONFIRMATION_BODY, body)
    if not confirmation.confirm:
        raise ApiProblem("validation", "confirm must be true; who only looks asks GET /v1/sweeps")

    def note(connection: Connection) -> StoredAnswer:
        number = confirmation.sweep
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
        return StoredAnswer(202, sweep_view(confirmed).model_dump_json(), {})

    return once.run(app_state, note)


def sweep_view(sweep: Sweep) -> SweepView:
    """Show a sweep."""
    return SweepView(
        number=sweep.number,
        at=sweep.at,
        shown=sweep.shown,
        suspects=[
            OrphanView(
                machine=suspect.machine,
                launch_key=suspect.launch_key,
                job=suspect.job,
                fate=suspect.fate,
                reason=suspect.reason,
                since=suspect.since,
            )
            for suspect in sweep.suspects
        ],
        ended=sweep.ended,
        tripped=sweep.tripped,
        confirmed_at=sweep.confirmed_at,
    )
