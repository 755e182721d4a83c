"""The state of the application, and FastAPI dependencies that hand it to the routes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

from fastapi import Depends, Request
from sqlalchemy import Engine

from service.agent_package import AgentPackage
from service.auth.secrets import EMPTY_SECRET_STORE, SecretStore
from service.auth.tokens import ControllerKeys
from service.background import JointHeartbeat, TaskHeartbeat
from service.clouds.clouds import Clouds
from service.clouds.storage import CheckpointStorage
from service.dashboard_files import DASHBOARD_NOT_BUILT, DashboardFiles
from service.db import clock
from service.outbound import PUBLIC_INTERNET, OutboundClient


@dataclass(frozen=True, slots=True)
class AppState:
    """What routes need of the controller.

    Attributes:
        clouds: Where machines are launched.
        storage: Where machines keep what outlives them.
        heartbeats: Of the background tasks of this controller, by name.
        max_startup_seconds: Seconds that a machine may take to come up.
        secret_store: The secrets of jobs.
        agent_package: What machines install when they boot; None where they bring it.
        ca: File with the certificate authority that machines are to trust, if it is not a public
            one.
        is_https: Whether browsers reach the controller by HTTPS, so that cookies are sent by no
            other way.
        dashboard: The page and what it loads.
        outbound: Judges the addresses of webhooks.
    """

    engine: Engine
    clouds: Clouds
    storage: CheckpointStorage
    heartbeats: Mapping[str, TaskHeartbeat | JointHeartbeat] = field(default_factory=dict)
    max_startup_seconds: float = 0.0
    secret_store: SecretStore = EMPTY_SECRET_STORE
    agent_package: AgentPackage | None = None
    ca: bytes | None = None
    is_https: bool = False
    dashboard: DashboardFiles = DASHBOARD_NOT_BUILT
    outbound: OutboundClient = PUBLIC_INTERNET

    @property
    def machine_type(self) -> str:
        """Kind of the machines of jobs that name none, part of a model's signature."""
        return self.clouds.default.traits.machine_type

    def now(self) -> datetime:
        """Return the present moment by the clock that all controllers of a database share."""
        return clock.now(self.engine)


@dataclass(frozen=True, slots=True)
class FromApp:
    """A dependency: an attribute of ``app.state``, which ``build_app`` sets."""

    name: str

    async def __call__(self, request: Request) -> Any:
        """Return the attribute; asynchronous, since FastAPI would spend a thread otherwise."""
        return getattr(request.app.state, self.name)


async def request_body_of(request: Request) -> bytes:
    """Return the body that ``GuardedRoute`` has read, within its limits."""
    return await request.body()


State = Annotated[AppState, Depends(FromApp("app_state"))]
SigningKeys = Annotated[ControllerKeys, Depends(FromApp("keys"))]
RequestBody = Annotated[bytes, Depends(request_body_of)]
