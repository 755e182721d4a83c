"""The machines of a project, for what they cost."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from sqlalchemy import Connection, literal, null, select

from service.auth.permissions import EVERY_PROJECT
from service.db.schema import jobs, vms
from service.db.vms import Vm, seen_prices
from service.offers import SeenPrice

MAX_NAMES = 10_000  # of one query; Postgres takes 65 535 parameters


def machines_of_project(connection: Connection, project: str) -> tuple[Vm, ...]:
    """Return every machine that was ever asked for by the jobs of a project, or of every one.

    How their commands ended is left out: it costs nothing.
    """
    query = select(vms, null().label("exit_code"), literal("").label("tail")).where(
        vms.c.attempted_at.is_not(None)
    )
    if project != EVERY_PROJECT:
        query = query.join(jobs, jobs.c.id == vms.c.job).where(jobs.c.project == project)
    machines = [Vm(**row) for row in connection.execute(query).mappings()]
    spot = [vm.id for vm in machines if vm.market == "spot"]
    seen: dict[str, tuple[SeenPrice, ...]] = {}
    for start in range(0, len(spot), MAX_NAMES):
        seen |= seen_prices(connection, spot[start : start + MAX_NAMES])
    return tuple(replace(vm, prices=seen.get(vm.id, ())) for vm in machines)


def names_of_jobs(connection: Connection, wanted: Collection[str]) -> Mapping[str, str]:
    """Return the names of jobs, by id."""
    query = select(jobs.c.id, jobs.c.name).where(jobs.c.id.in_(wanted))
    return {row.id: row.name for row in connection.execute(query)}
