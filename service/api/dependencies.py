"""State of the application, and FastAPI dependencies that hand it to the routes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy import Engine
from starlette.requests import ClientDisconnect

from service.api.problems import ApiProblem
from service.auth.principals import BootstrapPrincipal, UserPrincipal, WorkerPrincipal
from service.auth.secrets import EMPTY_SECRET_STORE, SecretStore
from service.auth.tokens import ControllerKeys
from service.background import TaskHeartbeat
from service.clouds.storage import CheckpointStorage
from service.db import clock


@dataclass(frozen=True, slots=True)
class AppState:
    """What endpoints need of the controller.

    Attributes:
        machine: Name of the machines jobs run on, part of a model's signature.
        storage: Where machines keep what outlives them.
        nudge: Hints to the reconciler that there is news; it would look soon anyway.
        heartbeats: Of the parts of this controller that go round, by name.
        boot: Seconds a machine may take to come up.
        secret_store: The secrets of jobs.
    """

    engine: Engine
    machine: str
    storage: CheckpointStorage
    nudge: Callable[[], None]
    heartbeats: Mapping[str, TaskHeartbeat] = field(default_factory=dict)
    boot: float = 0.0
    secret_store: SecretStore = EMPTY_SECRET_STORE

    def now(self) -> datetime:
        """Return the present moment, the same on every computer that has this database."""
        return clock.now(self.engine)


def app_state_of(request: Request) -> AppState:
    """Return the app_state of the application that was asked."""
    app_state = request.app.state.app_state
    assert isinstance(app_state, AppState)
    return app_state


async def request_body_of(request: Request) -> bytes:
    """Return the body as it came; nobody hears the answer to one that ended too soon."""
    try:
        return await request.body()
    except ClientDisconnect:
        raise ApiProblem("validation", "the body ended before its end") from None


def current_worker(request: Request) -> str:
    """Return the worker a machine's token names."""
    caller = request.scope["caller"]
    assert isinstance(caller, WorkerPrincipal)
    return caller.worker


def current_user(request: Request) -> UserPrincipal:
    """Return the person who asks."""
    caller = request.scope["caller"]
    assert isinstance(caller, UserPrincipal)
    return caller


def bootstrap_worker(request: Request) -> str:
    """Return the worker a machine that just came up was launched as."""
    caller = request.scope["caller"]
    assert isinstance(caller, BootstrapPrincipal)
    return caller.worker


def controller_keys(request: Request) -> ControllerKeys:
    """Return the keys of the application that was asked."""
    keys = request.app.state.keys
    assert isinstance(keys, ControllerKeys)
    return keys


State = Annotated[AppState, Depends(app_state_of)]
RequestBody = Annotated[bytes, Depends(request_body_of)]
CurrentWorker = Annotated[str, Depends(current_worker)]
CurrentUser = Annotated[UserPrincipal, Depends(current_user)]
BootstrapWorker = Annotated[str, Depends(bootstrap_worker)]
SigningKeys = Annotated[ControllerKeys, Depends(controller_keys)]
