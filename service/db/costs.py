"""The machines of a project, for what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import Connection, literal, null, or_, select

from service.auth.permissions import EVERY_PROJECT
from service.db.schema import jobs, vms
from service.db.vms import Vm, seen_prices
from service.offers import SeenPrice

MAX_NAMES = 10_000  # of one query; Postgres takes 65 535 parameters


@dataclass(frozen=True, slots=True)
class CostOwner:
    """A job that machines worked for.

    Attributes:
        name: Its name.
        model_key: Key of its model.
        project: Its project.
    """

    name: str
    model_key: str
    project: str


def machines_of_project(
    connection: Connection, project: str, since: datetime | None = None
) -> tuple[Vm, ...]:
    """Return every machine that was ever asked for by the jobs of a project, or of every one.

    How their commands ended is left out: it costs nothing.

    Args:
        connection: Where from.
        project: Whose.
        since: Leave out machines that were gone by then.
    """
    query = select(vms, null().label("exit_code"), literal("").label("tail")).where(
        vms.c.attempted_at.is_not(None)
    )
    if project != EVERY_PROJECT:
        query = query.join(jobs, jobs.c.id == vms.c.job).where(jobs.c.project == project)
    if since is not None:
        query = query.where(or_(vms.c.ended_at.is_(None), vms.c.ended_at > since))
    machines = [Vm(**row) for row in connection.execute(query).mappings()]
    spot = [vm.id for vm in machines if vm.market == "spot"]
    seen: dict[str, tuple[SeenPrice, ...]] = {}
    for start in range(0, len(spot), MAX_NAMES):
        seen |= seen_prices(connection, spot[start : start + MAX_NAMES])
    return tuple(replace(vm, prices=seen.get(vm.id, ())) for vm in machines)


def cost_owners(connection: Connection, project: str) -> Mapping[str, CostOwner]:
    """Return what each job of a project, or of every one, is called and belongs to, by id."""
    query = select(jobs.c.id, jobs.c.name, jobs.c.model_key, jobs.c.project)
    if project != EVERY_PROJECT:
        query = query.where(jobs.c.project == project)
    return {
        row.id: CostOwner(row.name, row.model_key, row.project) for row in connection.execute(query)
    }
