"""Glance: jobs as they stand now, with what they measured last."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from scavenger.protocol import StepColumns
from service.api.world import World
from service.db import chunks
from service.db.jobs import Job
from service.reconciler.reading import read_all
from service.reconciler.snapshot import Snapshot

RECENT_REPORTS, RECENT_ROWS = 10, 100


def look_at(
    world: World, connection: Connection, wanted: Sequence[Job]
) -> list[tuple[Snapshot, StepColumns]]:
    """Return how jobs stand, and their newest iterations, with as many queries as for one."""
    snapshots = read_all(connection, world.machine, wanted, world.now())
    told = {s.job.id: s.directive.generation for s in snapshots if s.directive is not None}
    recent = chunks.newest_of(connection, told, RECENT_REPORTS, RECENT_ROWS)
    return [(snapshot, recent.get(snapshot.job.id, StepColumns())) for snapshot in snapshots]
