"""The FastAPI application: routes, middleware, and problem responses for every error."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

from anyio.to_thread import run_sync
from fastapi import Depends, FastAPI
from starlette.types import ASGIApp

from scavenger.schemas import UserRole
from service.api.dependencies import AppState
from service.api.health import HealthChecks
from service.api.middleware import AccessLogMiddleware, AuthMiddleware
from service.api.openapi import install_openapi
from service.api.pagination import CursorCodec
from service.api.problems import install_problem_handlers
from service.api.request_id import RequestIdMiddleware
from service.api.routes import (
    agent,
    audit,
    backfill,
    diagnostics,
    enrolment,
    health,
    jobs,
    models,
    problem_pages,
    sweeps,
    tokens,
)
from service.api.validation import check_parameters
from service.auth.permissions import RouteTable
from service.auth.principals import EVERY_PROJECT
from service.auth.rate_limit import RateLimiter
from service.auth.tokens import ApiToken, ControllerKeys
from service.db import access as stored

ROUTE_MODULES = (
    jobs,
    models,
    sweeps,
    agent,
    enrolment,
    backfill,
    tokens,
    audit,
    diagnostics,
    health,
    problem_pages,
)


class Application(FastAPI):
    """FastAPI whose every answer leaves in an envelope, those to its own mistakes too."""

    def build_middleware_stack(self) -> ASGIApp:
        """Put the envelope around everything."""
        return RequestIdMiddleware(super().build_middleware_stack())


def build_app(
    app_state: AppState,
    keys: ControllerKeys,
    limiter: RateLimiter | None = None,
    names: Collection[str] = (),
) -> FastAPI:
    """Put the application together.

    Args:
        app_state: What endpoints need.
        keys: The first token, which is let in when the application starts, and the machines' key.
        limiter: Counts requests.
        names: Host names it may be asked under; none means any.

    Raises:
        ValueError: Nobody said who may use one of its routes.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await run_sync(store_home_token, app_state, keys)
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
    app.state.app_state, app.state.keys = app_state, keys
    app.state.cursors = CursorCodec(keys.cursor_secret())
    app.state.vitals = HealthChecks(app_state.engine, app_state.heartbeats)
    for part in ROUTE_MODULES:
        app.include_router(part.router)
    install_problem_handlers(app)
    install_openapi(app)

    @app.get("/openapi.json", include_in_schema=False)
    def description() -> dict[str, Any]:
        return app.openapi()

    app.add_middleware(
        AuthMiddleware,
        app_state=app_state,
        keys=keys,
        routes=RouteTable(app),
        limiter=limiter or RateLimiter(time.monotonic),
        names=frozenset(name.lower() for name in names),
    )
    app.add_middleware(AccessLogMiddleware)
    return app


def store_home_token(app_state: AppState, keys: ControllerKeys) -> None:
    """Let the token of the home directory in, unless it was revoked."""
    credential, now = ApiToken.of(keys.token), app_state.now()
    token = stored.StoredToken(
        credential.id, "home", EVERY_PROJECT, UserRole.ADMIN, created_at=now, created_by="serve"
    )
    with app_state.engine.begin() as connection:
        stored.store_token(connection, credential, token)
