"""Checkups: what the controller finds out about itself, for ``scavenger doctor``."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

import psutil
from fastapi import APIRouter
from sqlalchemy import Connection

from scavenger.checkup import (
    bad,
    check_clocks,
    check_disk,
    check_durability,
    check_parts,
    check_postgres,
    check_schema,
    check_sweeps,
    good,
)
from scavenger.view import CheckupView, CheckView
from service.api.vitals import PARTS
from service.api.world import Here, World
from service.db import clock, installation, migrate, server, sweeps

router = APIRouter(prefix="/v1/checkup", tags=["health"])


@router.get("")
def check_up(world: Here) -> CheckupView:
    """Look at the database, the disk, the clocks and the parts that go round."""
    with world.engine.begin() as connection:
        checks = [*checks_of_database(world, connection), *checks_of_controller(world)]
    return CheckupView(version=version("scavenger"), at=world.now(), checks=checks)


def checks_of_database(world: World, connection: Connection) -> Iterator[CheckView]:
    """Yield what is found in and about the database."""
    asked = server.describe(connection)
    yield check_postgres(asked.version)
    yield check_durability(asked.settings)
    yield check_schema(migrate.revision(connection), migrate.newest())
    now = clock.ask(connection)
    yield check_clocks("database clock", now - clock.wall())
    sweep = next(iter(sweeps.newest(connection, 1)), None)
    if sweep is None:
        yield check_sweeps(None, 0, None)
    else:
        held = sweep.tripped if sweep.confirmed_at is None else None
        yield check_sweeps(now - sweep.at, sweep.shown, held)
    yield good("installation", installation.identify(connection))


def checks_of_controller(world: World) -> Iterator[CheckView]:
    """Yield what is found in the controller and on its computer."""
    pulses = {name: world.pulses.get(name) for name in PARTS}
    yield check_parts({name: p is not None and p.is_alive for name, p in pulses.items()})
    yield look_at_disk(str(world.storage.root))


def look_at_disk(root: str) -> CheckView:
    """Return how much is free where machines keep things."""
    try:
        return check_disk(psutil.disk_usage(root).free)
    except OSError as error:
        found = f"{root} cannot be looked at: {error.strerror}"
        return bad("disk", found, "Make the directory, or name another with --home.")
