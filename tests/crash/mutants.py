"""``python -m tests.crash.mutants``: errors on purpose that only a kill at the right line shows.

A story that shows one without a kill is left out, so the kill is what finds it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import patch
from uuid import uuid4, uuid5

from sqlalchemy import Connection, case, func, literal, select, update

from scavenger.schemas.jobs import JobPhase
from service import ledger
from service.db import controllers, jobs, orders, schema, sweeps, vms
from service.db.controllers import JobLease, under_lease
from service.db.jobs import StoredJob
from service.db.vms import Vm
from service.reconciler import tick
from service.reconciler.actions import Action, Finish, Launch, ObeyOrder
from service.reconciler.apply import record_action
from service.reconciler.fleet import CurrentTime, Fleet
from service.reconciler.launches import roles_of
from service.state.job_state import JobState
from service.state.loader import OrderedJob
from service.state.orders import NO_ORDERS
from tests import builders
from tests.crash import troupe
from tests.crash.__main__ import database
from tests.crash.play import Theatre
from tests.crash.scenario import NAMED

launch, order_end, launched, take = (
    Fleet.launch,
    vms.record_end_order,
    vms.record_launch,
    controllers.acquire_lease,
)
begin = sweeps.begin


def unordered(job: StoredJob) -> OrderedJob:
    """Return a job that has no orders."""
    return OrderedJob(job, NO_ORDERS, job.spec)


def key_with_the_answer(
    fleet: Fleet, lease: JobLease, job: StoredJob, vm: Vm, present: CurrentTime
) -> None:
    """Make a launch key up, and write it down once the machine is there."""
    now, provider = present(), fleet.clouds[vm.cloud]
    boot = timedelta(seconds=provider.traits.max_boot_seconds)
    with under_lease(fleet.engine, lease) as connection:
        stamp = fleet.launch_counter.count_launch(connection)
        ledger.reserve_attempt(connection, vm, job.spec.limits.max_cost, now, boot, stamp)
    key = str(uuid4())
    labels = fleet.resource_labels.labels(key, stamp)
    asked = replace(fleet._launch_request(unordered(job), vm, labels), launch_key=key)
    instance = provider.launch(asked)
    with under_lease(fleet.engine, lease) as connection:
        mine = schema.vms.c.id == vm.id
        connection.execute(update(schema.vms).where(mine).values(launch_key=key))
        vms.record_launch(connection, vm.id, instance.provider_id)


def launch_then_intend(
    fleet: Fleet, lease: JobLease, snapshot: JobState, action: Launch, present: CurrentTime
) -> None:
    """Launch under the right keys, and write down afterwards that one will."""
    span, provider = timedelta(minutes=10), fleet.clouds[action.offer.cloud]
    for number, role in enumerate(roles_of(action), len(snapshot.vms) + 1):
        key = str(uuid5(vms.LAUNCH_KEY_NAMESPACE, f"{snapshot.job.id}/{number}"))
        with under_lease(fleet.engine, lease) as connection:
            stamp = fleet.launch_counter.count_launch(connection)
            labels = fleet.resource_labels.labels(key, stamp)
        terms = ledger.terms_for_role(action.offer.terms, snapshot.job.spec, role)
        vm = replace(
            builders.vm(number),
            id=f"{snapshot.job.id}-{role[0]}{number}",
            job=snapshot.job.id,
            role=role,
            launch_key=key,
            cloud=action.offer.cloud,
            zone=action.offer.zone,
            machine_type=action.offer.machine_type,
            price_per_hour=terms.price_per_hour,
            prepaid=span.total_seconds(),
        )
        provider.launch(fleet._launch_request(unordered(snapshot.job), vm, labels))
    launch(fleet, lease, snapshot, action, present)


def gone_on_request(connection: Connection, vm: str, now: datetime) -> None:
    """Call a machine gone when its end is about to be ordered, and guess when it will be."""
    order_end(connection, vm, now)
    vms.record_gone(connection, vm, now + timedelta(seconds=2))


def attempt_unwritten(
    connection: Connection, vm: str, now: datetime, until: datetime, stamp: str
) -> None:
    """Do not write down that the cloud is about to be asked."""
    vms.extend_prepaid(connection, vm, until)


def launched_and_attempted(connection: Connection, vm: str, provider_id: str) -> None:
    """Write down that the cloud was asked when it has answered."""
    launched(connection, vm, provider_id)
    mine, asked_at = schema.vms.c.id == vm, schema.vms.c.intended_at
    connection.execute(update(schema.vms).where(mine).values(attempted_at=asked_at))


def finish_in_two(
    connection: Connection, machine_type: str, snapshot: JobState, action: Action
) -> None:
    """End a job in one transaction, and say and learn it in the next."""
    if isinstance(action, Finish):
        with connection.engine.begin() as other:
            jobs.change_outcome(
                other,
                snapshot.job.id,
                phase=action.phase,
                reason=action.why,
                worker_exit_code=action.exit_code,
                epochs_to_target=action.epochs,
                finished_at=snapshot.now,
            )
    record_action(connection, machine_type, snapshot, action)  # type: ignore[arg-type]


def obey_in_two(
    connection: Connection, machine_type: str, snapshot: JobState, action: Action
) -> None:
    """End an order in one transaction, and obey it in the next."""
    if isinstance(action, ObeyOrder):
        with connection.engine.begin() as other:
            orders.end_order(other, snapshot.job.id, action.order, "done", action.why, snapshot.now)
    record_action(connection, machine_type, snapshot, action)  # type: ignore[arg-type]


def forget_final_jobs(connection: Connection) -> list[str]:
    """Look after a job that has ended only where the end of its machines was ordered."""
    final = [phase for phase in JobPhase if phase.is_final]
    unfinished = select(schema.outcomes.c.job).where(schema.outcomes.c.phase.not_in(final))
    ending = select(schema.vms.c.job).where(schema.vms.c.state == "ending")
    return list(connection.execute(unfinished.union(ending)).scalars())


def sweep_one_by_one(
    connection: Connection, cloud: str, now: datetime, pause: timedelta
) -> int | None:
    """Begin no sweep before the last one has ended."""
    open_ones = select(schema.sweeps.c.number).where(schema.sweeps.c.shown.is_(None))
    if connection.execute(open_ones).first() is not None:
        return None
    return begin(connection, cloud, now, pause)


def lease_for_ever(
    connection: Connection, job: str, held: JobLease | None, term: timedelta
) -> JobLease | None:
    """Take a lease that no other can take over."""
    return take(connection, job, held, timedelta(days=1))


def rush_stamp(connection: Connection, vm: Vm, *others: Any) -> bool:
    """Reserve nothing for an attempt that is made again."""
    now = others[1]
    is_first = vm.attempted_at is None
    connection.execute(
        update(schema.vms)
        .where(schema.vms.c.id == vm.id)
        .values(
            attempted_at=func.coalesce(schema.vms.c.attempted_at, literal(now)),
            state=case((literal(is_first), schema.vms.c.state), else_="ending"),
        )
    )
    return is_first


MUTANTS: Mapping[str, tuple[tuple[object, str, object], ...]] = {
    "a launch key is written with the answer": ((Fleet, "_launch_machine", key_with_the_answer),),
    "launched, then intended": ((Fleet, "launch", launch_then_intend),),
    "gone on request": ((vms, "record_end_order", gone_on_request),),
    "an attempt is written with the answer": (
        (vms, "record_attempt", attempt_unwritten),
        (vms, "record_launch", launched_and_attempted),
    ),
    "a launch is never repeated": ((ledger, "reserve_attempt", rush_stamp),),
    "the end and its lesson apart": ((tick, "record_action", finish_in_two),),
    "an order ends, then it is obeyed": ((tick, "record_action", obey_in_two),),
    "jobs that have ended are forgotten": ((jobs, "to_reconcile", forget_final_jobs),),
    "a sweep waits for the last one": ((sweeps, "begin", sweep_one_by_one),),
    "leases of the dead hold": ((controllers, "acquire_lease", lease_for_ever),),
}


BROKEN = re.compile(r"^(AttributeError|ImportError|NameError|TypeError)", re.MULTILINE)
STORIES = [NAMED[name] for name in ("terminate-early", "launch", "sweep", "orders")]


def main() -> None:
    """Print which kill found each; fail if none did, or if none was needed."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.mutants", description=__doc__)
    parser.add_argument("--mutant", choices=MUTANTS, action="append", help="default: all")
    names, survivors = parser.parse_args().mutant or list(MUTANTS), []
    with database() as url, troupe.troupe(url, 2) as pool:
        print(f"{'mutant':42}{'kills':>6}  found by")
        asked = {name: pool.submit(hunt, name) for name in names}
        for name, found in asked.items():
            kills, point = found.result()
            print(f"{name:42}{kills:>6}  {point or 'nothing'}"[:150], flush=True)
            survivors += [] if point else [name]
    if survivors:
        sys.exit(f"not found by a kill: {', '.join(survivors)}")


def hunt(name: str) -> tuple[int, str | None]:
    """Kill after every effect until one shows what is wrong; return how many it took."""
    usual, tried = troupe.THEATRES[0], 0
    theatre = Theatre(usual.engine, usual.controllers)
    with ExitStack() as mutation:
        for where, what, change in MUTANTS[name]:
            mutation.enter_context(patch.object(where, what, change))
        for story in STORIES:
            try:
                run = theatre.plain(story).run
            except AssertionError as error:
                require_sound(name, (str(error).replace("\\n", "\n"),))
                continue
            for at in (effect + 1 for effect in run.effects if 0 < effect < len(run.lines)):
                tried += 1
                outcome = theatre.play(story, theatre.plain(story), (run.kill(at),))
                require_sound(name, outcome.wrong)
                if outcome.wrong:
                    return tried, f"{story.name}:{at}, {outcome.wrong[0]}"
    return tried, None


def require_sound(name: str, wrong: tuple[str, ...]) -> None:
    """Raise AttributeError if a mutant calls what the product no longer has."""
    for sentence in wrong:
        if BROKEN.search(sentence):
            raise AttributeError(f"the mutant {name!r} is broken: {sentence}")


if __name__ == "__main__":
    main()
