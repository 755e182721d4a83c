"""The FastAPI application: routes, the gate before them, and errors in one language."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

from anyio.to_thread import run_sync
from fastapi import Depends, FastAPI
from starlette.types import ASGIApp

from scavenger.view import PersonRole
from service.api import (
    agent,
    audit,
    checkups,
    deliveries,
    enrolment,
    health,
    jobs,
    models,
    problems,
    sweeps,
    tokens,
)
from service.api.access import Doors
from service.api.cursors import Cursors
from service.api.description import describe
from service.api.envelope import Envelope
from service.api.gate import Gate
from service.api.journal import Journal
from service.api.parameters import check_parameters
from service.api.rates import Rates
from service.api.refusal import answer_in_problems
from service.api.vitals import Vitals
from service.api.world import World
from service.caller import EVERY_PROJECT
from service.credential import Credential
from service.db import tokens as stored
from service.keys import Keys

PARTS = (
    jobs,
    models,
    sweeps,
    agent,
    enrolment,
    deliveries,
    tokens,
    audit,
    checkups,
    health,
    problems,
)


class Application(FastAPI):
    """FastAPI whose every answer leaves in an envelope, those to its own mistakes too."""

    def build_middleware_stack(self) -> ASGIApp:
        """Put the envelope around everything."""
        return Envelope(super().build_middleware_stack())


def build_app(
    world: World, keys: Keys, rates: Rates | None = None, names: Collection[str] = ()
) -> FastAPI:
    """Put the application together.

    Args:
        world: What endpoints need.
        keys: The first token, which is let in when the application starts, and the machines' key.
        rates: Counts requests.
        names: Host names it may be asked under; none means any.

    Raises:
        ValueError: Nobody said who may use one of its routes.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await run_sync(enrol, world, keys)
        yield

    app = Application(
        title="Scavenger",
        version="1",
        lifespan=lifespan,
        openapi_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
        dependencies=[Depends(check_parameters)],
    )
    app.state.world, app.state.keys = world, keys
    app.state.cursors = Cursors(keys.cursors())
    app.state.vitals = Vitals(world.engine, world.pulses)
    for part in PARTS:
        app.include_router(part.router)
    answer_in_problems(app)
    describe(app)

    @app.get("/openapi.json", include_in_schema=False)
    def description() -> dict[str, Any]:
        return app.openapi()

    app.add_middleware(
        Gate,
        world=world,
        keys=keys,
        doors=Doors(app),
        rates=rates or Rates(time.monotonic),
        names=frozenset(name.lower() for name in names),
    )
    app.add_middleware(Journal)
    return app


def enrol(world: World, keys: Keys) -> None:
    """Let the token of the home directory in, unless it was revoked."""
    credential, now = Credential.of(keys.token), world.now()
    token = stored.Token(
        credential.id, "home", EVERY_PROJECT, PersonRole.ADMIN, created_at=now, created_by="serve"
    )
    with world.engine.begin() as connection:
        stored.store(connection, credential, token)
