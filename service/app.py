"""The FastAPI application: routes, middleware, and problem responses for every error."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import cache
from importlib import import_module

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import APIRouter, FastAPI
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from scavenger.schemas.access import UserRole
from service.api import dashboard
from service.api.dependencies import AppState
from service.api.health import HealthChecks
from service.api.middleware import AccessLogMiddleware, RequestGateMiddleware, RequestIdMiddleware
from service.api.negotiation import CompressionMiddleware
from service.api.openapi import install_openapi
from service.api.pagination import CursorCodec
from service.api.problems import install_problem_handlers
from service.api.routes import (
    access,
    agent,
    bundles,
    checkpoints,
    code,
    cost,
    curves,
    events,
    health,
    jobs,
    logs,
    machines,
    models,
    offers,
    orders,
    plans,
    prices,
    reference,
    session,
    sweeps,
    telemetry,
    webhooks,
)
from service.api.security import Guard, permissions_of
from service.api.streams import EventStreams
from service.auth.permissions import EVERY_PROJECT
from service.auth.rate_limit import RateLimiter
from service.auth.tokens import ControllerKeys, TokenDigest
from service.db.access import StoredToken, store_token

ROUTE_MODULES = (
    *(jobs, orders, events, telemetry, logs, machines, code, models, prices, offers, cost),
    *(sweeps, webhooks, curves, plans),
    *(agent, bundles, checkpoints, access, session, health, reference, dashboard),
)

# A page of 50 jobs shrinks to a tenth in 1 ms of processor; higher levels take longer for little.
MIN_COMPRESSED, ANSWER_COMPRESSION = 1024, 4


class Application(FastAPI):
    """FastAPI whose every answer has a request id and security headers.

    Starlette answers internal errors outside of all middleware that is added to it.
    """

    def build_middleware_stack(self) -> ASGIApp:
        """Put the middleware for these headers around Starlette's own."""
        return RequestIdMiddleware(super().build_middleware_stack())


def build_app(
    app_state: AppState,
    keys: ControllerKeys,
    limiter: RateLimiter | None = None,
    allowed_hosts: Collection[str] = (),
) -> FastAPI:
    """Put the application together.

    Args:
        app_state: What routes need of the controller.
        keys: The first token, which is stored when the application starts, and the signing secret.
        limiter: Counts requests.
        allowed_hosts: Host names of the controller; empty means any.

    Raises:
        ValueError: A route does not state who may use it.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await run_sync(store_home_token, app_state, keys)
        # The library that finds knees takes seconds to import, for which the first plan would wait.
        threading.Thread(target=import_module, args=("kneed",), daemon=True).start()
        yield

    app = Application(
        title="Scavenger",
        version="1",
        routes=included_routes(),
        lifespan=lifespan,
        openapi_url=None,  # FastAPI's own route would answer without a token
        redirect_slashes=False,
    )
    guard = Guard(app_state, keys, limiter or RateLimiter(time.monotonic))
    app.state.app_state, app.state.keys, app.state.guard = app_state, keys, guard
    app.state.cursors = CursorCodec(keys.cursor_secret())
    app.state.upload_limit = CapacityLimiter(code.CONCURRENT_UPLOADS)
    app.state.store_limit = CapacityLimiter(code.CONCURRENT_STORES)
    app.state.streams = EventStreams(app_state, jobs.job_views)
    app.state.health = HealthChecks(app_state.engine, app_state.heartbeats)
    permissions_of(app)
    install_problem_handlers(app)
    for status in (404, 405):
        app.add_exception_handler(status, guard.answer_unrouted)
    install_openapi(app)
    app.add_middleware(
        CompressionMiddleware,
        minimum_size=MIN_COMPRESSED,
        compresslevel=ANSWER_COMPRESSION,
        exclude_content_types=(*DEFAULT_EXCLUDED_CONTENT_TYPES, "application/octet-stream"),
    )
    lowered = frozenset(name.lower() for name in allowed_hosts)
    app.add_middleware(RequestGateMiddleware, app_state=app_state, keys=keys, allowed_hosts=lowered)
    app.add_middleware(AccessLogMiddleware)
    return app


@cache
def included_routes() -> list[BaseRoute]:
    """Return all routes, as any number of applications of a process share them.

    FastAPI resolves their parameters when the first asks, which takes longer than all else here.
    """
    routes = APIRouter(generate_unique_id_function=lambda route: route.name)
    for module in ROUTE_MODULES:
        routes.include_router(module.router)
    return routes.routes


def store_home_token(app_state: AppState, keys: ControllerKeys) -> None:
    """Store the token of the home directory, unless it is there: it may be revoked."""
    credential, now = TokenDigest.of(keys.home_token), app_state.now()
    token = StoredToken(
        id=credential.id,
        name="home",
        project=EVERY_PROJECT,
        role=UserRole.ADMIN,
        created_at=now,
        created_by="serve",
    )
    with app_state.engine.begin() as connection:
        store_token(connection, credential, token)
