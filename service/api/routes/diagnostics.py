"""Diagnostics of the controller for ``scavenger doctor``."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

import psutil
from fastapi import APIRouter
from sqlalchemy import Connection

from scavenger.client.diagnostics import (
    check_background_loops,
    check_clocks,
    check_cloud_sweeps,
    check_disk,
    check_durability,
    check_postgres,
    check_schema,
    failed_check,
    passed_check,
)
from scavenger.schemas import CheckView, DiagnosticsView
from service.api.dependencies import AppState, State
from service.api.health import BACKGROUND_TASKS
from service.db import clock, controllers, database, sweeps

router = APIRouter(prefix="/v1/checkup", tags=["health"])


@router.get("")
def check_up(app_state: State) -> DiagnosticsView:
    """Look at the database, the disk, the clocks and the parts that go round."""
    with app_state.engine.begin() as connection:
        checks = [*database_checks(app_state, connection), *controller_checks(app_state)]
    return DiagnosticsView(version=version("scavenger"), at=app_state.now(), checks=checks)


def database_checks(app_state: AppState, connection: Connection) -> Iterator[CheckView]:
    """Yield what is found in and about the database."""
    asked = database.describe_server(connection)
    yield check_postgres(asked.version)
    yield check_durability(asked.settings)
    yield check_schema(database.applied_revision(connection), database.newest_revision())
    now = clock.read(connection)
    yield check_clocks("database clock", now - clock.local_time())
    sweep = next(iter(sweeps.newest(connection, 1)), None)
    if sweep is None:
        yield check_cloud_sweeps(None, 0, None)
    else:
        held = sweep.tripped if sweep.confirmed_at is None else None
        yield check_cloud_sweeps(now - sweep.at, sweep.shown, held)
    yield passed_check("installation", controllers.installation_id(connection))


def controller_checks(app_state: AppState) -> Iterator[CheckView]:
    """Yield what is found in the controller and on its computer."""
    heartbeats = {name: app_state.heartbeats.get(name) for name in BACKGROUND_TASKS}
    yield check_background_loops(
        {name: p is not None and p.is_alive for name, p in heartbeats.items()}
    )
    yield disk_check(str(app_state.storage.root))


def disk_check(root: str) -> CheckView:
    """Return how much is free where machines keep things."""
    try:
        return check_disk(psutil.disk_usage(root).free)
    except OSError as error:
        found = f"{root} cannot be looked at: {error.strerror}"
        return failed_check("disk", found, "Make the directory, or name another with --home.")
