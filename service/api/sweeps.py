"""Sweeps: what looks for machines that nobody wants found, and the word that lets them be ended."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter
from sqlalchemy import Connection

from scavenger.view import SuspectView, SweepList, SweepView
from service.api.cursors import Cursor, Limit, Pages
from service.api.description import REPLAYED, is_a_page, refuses, takes
from service.api.errand import Once
from service.api.refusal import Refusal
from service.api.sieve import understand
from service.api.world import Body, Here
from service.db import sweeps
from service.db.requests import Answer
from service.db.sweeps import Sweep

router = APIRouter(prefix="/v1/sweeps", tags=["sweeps"])

LONGEST = 4096


def whole(value: object) -> object:
    """Return a number without its empty fraction: to JSON 7.0 is a whole number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


POSITION = TypeAdapter(tuple[int])

Number = Annotated[int, Field(ge=1, le=2**53), BeforeValidator(whole)]


class Confirmation(BaseModel):
    """Somebody has seen what a sweep held back, the newest if none is named."""

    model_config = ConfigDict(strict=True, extra="forbid")

    confirm: Annotated[bool, Field(json_schema_extra={"const": True})]
    sweep: Number | None = None


CONFIRMATION = TypeAdapter(Confirmation)


@router.get("", responses=is_a_page("list_sweeps"))
def list_sweeps(world: Here, pages: Pages, limit: Limit = 50, cursor: Cursor = None) -> SweepList:
    """List sweeps, newest first."""
    before = None if cursor is None else pages.read("sweeps", cursor, POSITION)[0]
    with world.engine.connect() as connection:
        found = sweeps.newest(connection, limit + 1, before)
    following = pages.write("sweeps", found[limit - 1].number) if len(found) > limit else None
    return SweepList(sweeps=[show(sweep) for sweep in found[:limit]], next_cursor=following)


@router.post(
    "",
    status_code=202,
    response_model=SweepView,
    responses={202: {"headers": REPLAYED}},
    openapi_extra={**takes(Confirmation), **refuses("not_found", "nothing_held")},
)
def confirm(world: Here, body: Body, once: Once) -> Response:
    """Let what a sweep held back be ended by the next ones."""
    if len(body) > LONGEST:
        raise Refusal("payload_too_large", f"a confirmation has at most {LONGEST} bytes")
    confirmation = understand(CONFIRMATION, body)
    if not confirmation.confirm:
        raise Refusal("validation", "confirm must be true; who only looks asks GET /v1/sweeps")

    def note(connection: Connection) -> Answer:
        number = confirmation.sweep
        if number is None:
            number = next((sweep.number for sweep in sweeps.newest(connection, 1)), 0)
        found = sweeps.find(connection, number)
        if found is None:
            raise Refusal("not_found", "there is no such sweep; GET /v1/sweeps lists them")
        if found.tripped is None:
            raise Refusal("nothing_held", f"sweep {number} held nothing back")
        sweeps.confirm(connection, number, world.now())
        confirmed = sweeps.find(connection, number)
        assert confirmed is not None
        return Answer(202, show(confirmed).model_dump_json(), {})

    return once.run(world, note)


def show(sweep: Sweep) -> SweepView:
    """Show a sweep."""
    return SweepView(
        number=sweep.number,
        at=sweep.at,
        shown=sweep.shown,
        suspects=[
            SuspectView(
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
