"""Deliveries: what machines measured and could not tell, brought later by somebody with a token.

``scavenger agent sync`` sends the reports of a spool here, however long the machine is gone.
"""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter, Response
from sqlalchemy import Connection

from scavenger.protocol import Hello, Reply, StepReport
from service.api.agent import compose, hear
from service.api.description import refuses, takes
from service.api.intake import take_in
from service.api.refusal import Refusal
from service.api.sieve import Sieved, sift
from service.api.world import Asker, Body, Here, World
from service.db import jobs, vms, workers

router = APIRouter(prefix="/v1/deliveries", tags=["agent"])


@router.post(
    "",
    response_model=Reply,
    openapi_extra={
        **takes(StepReport),
        **refuses("not_found", "sequence_gap", "conflict_state"),
    },
)
def deliver(world: Here, asker: Asker, body: Body) -> Response:
    """Store a report of a spool, each row once."""
    sieved = sift(body)
    worker = sieved.message.worker
    with world.engine.begin() as connection:
        job = vms.ever_of(connection, worker)
        project = None if job is None else jobs.project_of(connection, job)
        if job is None or project is None or not asker.sees(project):
            raise Refusal("not_found", f"this controller never had a machine {worker}")
        is_greeted = workers.address_of(connection, worker) is not None
        if vms.job_of(connection, worker) is None:
            return compose(take_late(connection, world, job, sieved, is_greeted=is_greeted))
        if not is_greeted:
            why = f"{worker} may still come up; deliver its rows when its job has ended"
            raise Refusal("conflict_state", why)
        return compose(hear(connection, world, sieved))


def take_late(
    connection: Connection, world: World, job: str, sieved: Sieved, *, is_greeted: bool
) -> Reply:
    """Store the rows of a machine that is gone; its news is old, nobody acts on it."""
    now = world.now()
    if not is_greeted:
        workers.greet(connection, job, Hello(sieved.message.worker, ""), now)
    return replace(take_in(connection, sieved, now).reply, directive=None)
