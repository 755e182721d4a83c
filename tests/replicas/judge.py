"""Judge: compares what the cloud saw with what the controllers wrote, job by job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from decimal import Decimal

from sqlalchemy import Connection, select

from scavenger.schemas.jobs import JobPhase
from service.db import jobs, vms, workers
from service.db.jobs import StoredJob
from service.db.schema import directives, events
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.machine import State
from tests.fakecloud.provider import JOB

ONCE = ("submitted", "launch", "choice", str(JobPhase.SUCCEEDED))
ONCE_EACH = ("hello", "vm_launched", "vm_gone")


def judge(
    connection: Connection, cloud: FakeCloud, wanted: Mapping[str, int], rows: Mapping[str, int]
) -> Iterator[str]:
    """Say what should not be, in sentences.

    Args:
        connection: The database.
        cloud: Knows what there truly was.
        wanted: Workers of each job.
        rows: Iterations that each machine handed over.
    """
    made = Counter(one.description.labels[JOB] for one in cloud.machines())
    yield from (f"{job}: machines for no job of ours" for job in made.keys() - wanted.keys())
    for truth in cloud.machines():
        if truth.description.state is not State.GONE:
            yield f"{truth.description.labels[JOB]}: {truth.description.id} still exists"
    for job, number in wanted.items():
        found = jobs.find(connection, job)
        assert found is not None
        if made[job] != number:
            yield f"{job}: {made[job]} machines were launched where {number} were wanted"
        yield from outcome(connection, cloud, found)
        yield from history(connection, job, number)
        yield from stored(connection, job, rows)


def outcome(connection: Connection, cloud: FakeCloud, job: StoredJob) -> Iterator[str]:
    """Say what is wrong with how a job ended, and with what it cost."""
    if job.phase is not JobPhase.SUCCEEDED:
        yield f"{job.id}: ended {job.phase}: {job.reason}"
    bill, cap = Decimal(cloud.bill().of(**{JOB: job.id})), job.spec.limits.max_cost
    if cap is None or bill > cap:
        yield f"{job.id}: {bill} dollars, where {cap} are allowed"
    alive = [vm.id for vm in vms.of_job(connection, job.id) if vm.is_alive]
    if alive:
        yield f"{job.id}: {alive} exist as far as is known"


def history(connection: Connection, job: str, number: int) -> Iterator[str]:
    """Say what was done more than once, or never: two controllers may never act at once."""
    query = select(directives.c.generation).where(directives.c.job == job)
    told = connection.execute(query.order_by(directives.c.generation)).scalars().all()
    if not told or list(told) != list(range(1, len(told) + 1)):
        yield f"{job}: generations {told}"
    query = select(events.c.kind).where(events.c.job == job)
    kinds = Counter(connection.execute(query).scalars())
    if kinds["resize"] != len(told):
        yield f"{job}: {kinds['resize']} sentences about {len(told)} generations"
    due = dict.fromkeys(ONCE, 1) | dict.fromkeys(ONCE_EACH, number)
    for kind, times in due.items():
        if kinds[kind] != times:
            yield f"{job}: {kinds[kind]} events {kind!r} instead of {times}"


def stored(connection: Connection, job: str, rows: Mapping[str, int]) -> Iterator[str]:
    """Say which iterations are not stored once."""
    for worker in workers.of_job(connection, job):
        if (worker.next_sequence, worker.rejected) != (rows.get(worker.worker, 0), 0):
            yield f"{worker.worker}: {worker.next_sequence} rows stored, {worker.rejected} rejected"
