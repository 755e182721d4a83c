"""Machines of many jobs as pages list them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime

from sqlalchemy import Connection, func, select, tuple_
from sqlalchemy.dialects.postgresql import distinct_on

from service.auth.permissions import EVERY_PROJECT
from service.db.schema import events, exits, jobs, vms, workers
from service.db.vms import Vm

VM_COLUMNS = {column.name for column in fields(Vm)}


@dataclass(frozen=True, slots=True)
class ListedMachine:
    """A machine, and what is known beside it.

    Attributes:
        project: Its job's.
        seen_at: When its worker was last heard; None before the first time.
    """

    vm: Vm
    project: str
    seen_at: datetime | None


def newest(
    connection: Connection,
    limit: int,
    before: tuple[datetime, str] | None = None,
    project: str = EVERY_PROJECT,
    job: str | None = None,
    states: Collection[str] = (),
) -> list[ListedMachine]:
    """Return machines newest first, without the prices that were seen of them.

    Args:
        connection: The database.
        limit: The most to return.
        before: Position of the last one that is not wanted any more.
        project: Whose, or every one's.
        job: Only of this job.
        states: Only in these states; empty for all.
    """
    ending = (exits.c.code.label("exit_code"), func.coalesce(exits.c.tail, "").label("tail"))
    query = (
        select(vms, *ending, jobs.c.project, workers.c.seen_at)
        .join(jobs, jobs.c.id == vms.c.job)
        .join(exits, exits.c.worker == vms.c.id, isouter=True)
        .join(workers, workers.c.worker == vms.c.id, isouter=True)
        .order_by(vms.c.intended_at.desc(), vms.c.id.desc())
        .limit(limit)
    )
    if project != EVERY_PROJECT:
        query = query.where(jobs.c.project == project)
    if job is not None:
        query = query.where(vms.c.job == job)
    if states:
        query = query.where(vms.c.state.in_(states))
    if before is not None:
        query = query.where(tuple_(vms.c.intended_at, vms.c.id) < before)
    return [
        ListedMachine(
            Vm(**{name: row[name] for name in VM_COLUMNS & row.keys()}),
            row["project"],
            row["seen_at"],
        )
        for row in connection.execute(query).mappings()
    ]


def told_ends(connection: Connection, machines: Sequence[Vm]) -> Mapping[str, str]:
    """Return the sentence of the event that told the end of each machine that is gone."""
    gone = [vm for vm in machines if not vm.is_alive]
    if not gone:
        return {}
    named = events.c.data["vm"].astext
    query = (
        select(named, events.c.message)
        .ext(distinct_on(named))
        .where(events.c.job.in_({vm.job for vm in gone}), events.c.kind == "vm_gone")
        .where(named.in_([vm.id for vm in gone]))
        .order_by(named, events.c.sequence.desc())
    )
    return {row[0]: row.message for row in connection.execute(query)}
