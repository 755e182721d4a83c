"""A controller to be asked anything: a real server and database, with something of each kind."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from sqlalchemy import Engine, create_engine

from scavenger.models.performance import fit_performance
from scavenger.planning.transfer import StoredModel
from scavenger.protocol import Hello
from scavenger.schemas.access import UserRole
from scavenger.schemas.prices import PriceRow
from scavenger.schemas.webhooks import EventKind, WebhookKind
from service.__main__ import StreamingServer
from service.api.dependencies import AppState
from service.api.health import BACKGROUND_TASKS
from service.api.security import permissions_of
from service.app import build_app
from service.auth.rate_limit import RateLimiter
from service.auth.tokens import ControllerKeys, TokenDigest
from service.background import TaskHeartbeat
from service.clouds.storage import CheckpointStorage
from service.dashboard_files import DASHBOARD_NOT_BUILT, DashboardFiles
from service.db import (
    access,
    bundles,
    directives,
    jobs,
    measurements,
    packages,
    plans,
    prices,
    stored_models,
    sweeps,
    vms,
    webhooks,
    workers,
)
from service.db.access import StoredToken
from service.db.jobs import record_event
from service.db.webhooks import StoredWebhook
from service.outbound import OutboundClient
from service.prices import to_price
from tests.builders import HERE, NOW, directive, observation, offer, orphan, plan_view, probe, spec

KEYS = ControllerKeys(home_token="scv_token", secret="s" * 48)
JOB = "job_0"
WORKER = f"{JOB}-w1"
PLAN = "plan_0"
PREY = TokenDigest("0123456789ab", "0" * 64)
# What stands in a path for each variable part of it, so that something is found there.
CODE = b"stands for an archive"
CODE_SHA256 = sha256(CODE).hexdigest()
THERE = {
    "{job}": JOB,
    "{plan}": PLAN,
    "{token}": PREY.id,
    "{problem}": "not-found",
    "{sha256}": CODE_SHA256,
    "{key}": CODE_SHA256,
    "{webhook}": "whk_0123456789abcdef",
    "{delivery}": "6",
    "{checkpoint:checkpoint}": f"{0:010}-{0:012}-{'0' * 32}",
    "{page:dashboard_path}": "jobs",
    "{signature}": "signature-0",
    "{signature:signature}": "signature-0",
}
# What stands there for DELETE, so that other requests still find theirs.
DOOMED = {"{webhook}": "whk_fedcba9876543210"}
ENTRIES = 5


async def resolve_to_public(host: str, port: int) -> Sequence[str]:
    """Resolve every name, without a network, to an address of the public internet."""
    return ["93.184.216.34"]


EVERY_NAME_IS_PUBLIC = OutboundClient(resolve_to_public)


def webhook(**changes: Any) -> StoredWebhook:
    """Return a webhook that is told of everything."""
    return StoredWebhook(
        **{
            "id": THERE["{webhook}"],
            "project": "default",
            "url": "https://hooks.example.org/events",
            "kind": WebhookKind.GENERIC,
            "events": (EventKind.EVERY,),
            "created_at": NOW,
            "created_by": "test",
            "enabled_at": NOW,
            **changes,
        }
    )


@dataclass(frozen=True, slots=True)
class Host:
    """A controller that answers.

    Attributes:
        url: Where it is.
        app: What answers there.
    """

    url: str
    app: FastAPI


def unconnected() -> FastAPI:
    """Return an application whose database is never asked, for what it says of itself."""
    engine = create_engine("postgresql+psycopg://none@localhost/none")
    return build_app(AppState(engine, HERE, CheckpointStorage(Path("/srv"))), KEYS)


# Who may use each route, by method and path.
ROUTES = permissions_of(unconnected())


@contextmanager
def host(engine: Engine, dashboard: DashboardFiles = DASHBOARD_NOT_BUILT) -> Iterator[Host]:
    """Run a controller until the end of a block."""
    fill(engine)
    well = dict.fromkeys(BACKGROUND_TASKS, TaskHeartbeat(math.inf))
    storage = CheckpointStorage(Path("/srv"))
    app_state = AppState(
        engine, HERE, storage, well, outbound=EVERY_NAME_IS_PUBLIC, dashboard=dashboard
    )
    app = build_app(app_state, KEYS, unhurried())
    with serve(app) as url:
        yield Host(url, app)


@contextmanager
def serve(app: FastAPI) -> Iterator[str]:
    """Serve an application on a free port of this computer until the end of a block."""
    config = uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=1)
    server = StreamingServer(config, app.state.streams)
    thread = threading.Thread(target=server.run)
    thread.start()
    while thread.is_alive() and not server.started:
        time.sleep(0.01)
    try:
        listener = server.servers[0].sockets[0]
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def filled(path: str, method: str = "") -> str:
    """Return the path of a route with what is there in place of its variable parts."""
    there = THERE | (DOOMED if method == "DELETE" else {})
    return "/".join(there.get(part, part) for part in path.split("/"))


def unhurried() -> RateLimiter:
    """Return rates for whom an hour lies between any two requests."""
    return RateLimiter(count(0, 3600).__next__)


def fill(engine: Engine) -> None:
    """Store several of everything: jobs, one of which is probed, models, events and sweeps."""
    now = datetime.now(UTC)
    seen = tuple(observation(k, b) for k, b in ((1, 32), (1, 128), (2, 128), (2, 32)))
    laws = fit_performance(seen, 1437, 32, None)
    held = orphan("i-1", "key-1", JOB, "hold", "the database does not know it", NOW)
    with engine.begin() as connection:
        packages.store(connection, "default", CODE_SHA256, CODE, now)
        bundles.store(connection, "default", CODE_SHA256, CODE, now)
        plans.store(
            connection,
            "default",
            spec(),
            plan_view(id=PLAN, expires_at=now + timedelta(minutes=15)),
            now,
        )
        for number in range(ENTRIES):
            at = NOW + timedelta(seconds=number // 2)
            run = {"command": ["python", "train.py"], "code": CODE_SHA256}
            jobs.create(connection, f"job_{number}", spec(run=run), at)
            record_event(connection, JOB, at, "test", f"event {number}")
            stored = StoredModel(f"signature-{number}", laws, seen, {}, 1)
            stored_models.store(connection, "default", "key", stored, at)
            row = PriceRow(provider="aws", region="r", item=f"m{number}", price=Decimal("0.1"))
            prices.store_prices(connection, [to_price(row, "imported", at)], at)
            sweep = sweeps.begin(connection, "local", at, timedelta(0))
            assert sweep is not None
            sweeps.record(connection, sweep, shown=0, suspects=(held,), tripped="too many")
        facts = {"project": "default", "created_at": NOW, "created_by": "test"}
        webhooks.create(connection, webhook())
        webhooks.create(connection, webhook(id=DOOMED["{webhook}"], enabled_at=None))
        for _ in range(ENTRIES):
            webhooks.request_delivery(connection, THERE["{webhook}"], now)
        access.store_token(
            connection, PREY, StoredToken(id=PREY.id, name="prey", role=UserRole.VIEWER, **facts)
        )
        terms, prepaid = offer("0.36"), timedelta(minutes=1)
        vms.record_intent(connection, JOB, 1, terms, now, prepaid)
        workers.record_hello(connection, JOB, Hello(WORKER, "127.0.0.1:1"), now)
        for config in ((1, 32), (1, 128), (2, 128), (2, 32)):
            measurements.record_probe(connection, JOB, probe(*config))
        directives.publish(connection, JOB, directive(1, 32), now)
    with engine.begin() as connection:  # events have their numbers by now
        webhooks.make_deliveries(connection, now)
