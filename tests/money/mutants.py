"""``python -m tests.money.mutants``: errors on purpose, each of which the state machine must find.

A test of money that no wrong ledger fails proves nothing.
"""

from __future__ import annotations

import argparse
import logging
import math
import pkgutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

from sqlalchemy import Connection, Engine, create_engine

from scavenger.protocol import VmLease
from service import ledger
from service.api.routes import agent
from service.auth.permissions import WorkerPrincipal
from service.clouds import google_machine
from service.clouds.google_machine import GOOGLE_JOB_LABEL
from service.clouds.provider import Instance, LaunchRequest
from service.db import controllers, jobs, vms
from service.db.database import migrate
from service.db.vms import Vm
from service.offers import BillingTerms
from service.postgres.server import EmbeddedPostgres
from service.prices import PriceBook
from service.reconciler import diff
from service.reconciler import fleet as fleet_module
from service.reconciler.diff import VmChange
from service.reconciler.fleet import Fleet
from service.state.job_state import JobState
from service.state.loader import OrderedJob, load_ordered_job
from service.state.orders import NO_ORDERS
from tests.fakecloud.emulator import Emulator, open_emulator
from tests.money.runs import play
from worker_agent.errors import ControllerUnreachable
from worker_agent.supervisor.lifetime import LeaseKeeper

MOST_RUNS = 400

committed_by, intend, order_end = (
    ledger.committed_by_machine,
    vms.record_intent,
    vms.record_end_order,
)
reserve_attempt, missed = ledger.reserve_attempt, vms.record_missing
launch_request, schedule = Fleet._launch_request, google_machine._scheduling


def count_from_receipt(prepaid: LeaseKeeper) -> None:
    try:
        left = prepaid._controller.lease(prepaid._worker).remaining
    except ControllerUnreachable:
        return
    prepaid._end = prepaid._clock() + left


def refund_on_request(connection: Connection, vm: str, now: datetime) -> None:
    order_end(connection, vm, now)
    vms.record_gone(connection, vm, now)


def refund_twice(vm: Vm) -> Decimal:
    if vm.ended_at is None:
        return committed_by(vm)
    return committed_by(vm) - (committed_by(replace(vm, ended_at=None)) - committed_by(vm))


def intend_without_boot(*arguments: Any, boot: timedelta = timedelta(0), **options: Any) -> None:
    *others, prepaid = arguments
    intend(*others, prepaid - boot, **options)


def reserve_without_boot(*arguments: Any) -> bool:
    *others, _, stamp = arguments
    return reserve_attempt(*others, timedelta(0), stamp)


def reserve_no_attempt(
    connection: Connection,
    machine: Vm,
    cap: Decimal | None,
    now: datetime,
    _: timedelta,
    stamp: str,
) -> bool:
    vms.record_attempt(connection, machine.id, now, machine.prepaid_until, stamp)
    return True


def round_up(dollars: Decimal, terms: BillingTerms) -> timedelta:
    milliseconds = max(dollars, Decimal(0)) * 3_600_000 / terms.price_per_hour
    span = timedelta(milliseconds=math.ceil(milliseconds))
    return terms.billed(span)


def bury_at_once(
    vm: Vm, now: datetime, lag: timedelta, boot: timedelta, *, is_job_over: bool
) -> VmChange:
    return (
        VmChange.RETRY_LAUNCH if vm.state == "intended" and not is_job_over else VmChange.MARK_GONE
    )


def stay_missed(connection: Connection, vm: str, at: datetime | None) -> None:
    if at is not None:
        missed(connection, vm, at)


def afford_without_boot(snapshot: JobState, workers: int, servers: int) -> bool:
    spec, terms = snapshot.job.spec, snapshot.worker_terms
    span = ledger.affordable_span(snapshot.vms, spec, terms, workers, servers, timedelta(0))
    return span is not None


def launch_elsewhere(
    fleet: Fleet, job: OrderedJob, vm: Vm, labels: Mapping[str, str]
) -> LaunchRequest:
    """Repeat a launch under its key in the next zone."""
    request, zones = launch_request(fleet, job, vm, labels), fleet.clouds[vm.cloud].traits.zones
    if vm.attempted_at is None:
        return request
    zone = zones[(zones.index(vm.zone) + 1) % len(zones)]
    return replace(request, offer=replace(request.offer, zone=zone))


def stop_on_preemption(request: LaunchRequest) -> dict[str, Any]:
    return schedule(request) | {"instance_termination_action": "STOP"}


def list_aggregated(provider: Any) -> tuple[Instance, ...]:
    """Believe a list of all zones, which leaves out a zone that is down."""
    from google.cloud import compute_v1

    from service.clouds.google_compute import call_error, translated
    from service.clouds.google_machine import instance_of

    found: list[Instance] = []
    with translated("list", call_error):
        pages = provider._api._instances.aggregated_list(
            request=compute_v1.AggregatedListInstancesRequest(
                project=provider._entry.project, filter=f"labels.{GOOGLE_JOB_LABEL}:*"
            ),
            retry=None,
        )
        for place, scope in pages:
            zone = place.removeprefix("zones/")
            found += [instance_of(shown, zone) for shown in scope.instances]
    return tuple(found)


def renew_by_an_old_cap(api: Any, caller: WorkerPrincipal) -> VmLease:
    """Read the cap, and only then wait for an order that lowers it."""
    with api.engine.begin() as connection:
        found = load_ordered_job(connection, caller.job)
        left = ledger.reserve_more_time(
            connection,
            caller.job,
            caller.worker,
            found.job.spec.limits.max_cost,
            api.now(),
            is_over=found.is_held,
        )
    return VmLease(max(left.total_seconds(), 0.0))


def forget_orders(connection: Connection, job: str) -> OrderedJob:
    """Launch by the job as it was submitted, in spite of its orders."""
    found, ordered = jobs.find(connection, job), load_ordered_job(connection, job)
    assert found is not None
    assert ordered is not None
    return OrderedJob(found, replace(NO_ORDERS, newest=ordered.standing.newest), found.spec)


def bill_no_minimum(terms: BillingTerms, span: timedelta) -> timedelta:
    started = max(span, timedelta(0))
    return -(-started // terms.quantum) * terms.quantum if terms.quantum else started


@dataclass(frozen=True, slots=True)
class MoneyMutant:
    """One error, made on purpose.

    Attributes:
        changes: Where, which attribute, and what stands there instead; where may be a dotted name,
            which is imported only when this mutant is played.
        cloud: Whose provider is played.
    """

    changes: tuple[tuple[object, str, object], ...]
    cloud: str = "fake"


IN_THE_LEDGER: Mapping[str, tuple[tuple[object, str, object], ...]] = {
    "lease counted from its receipt": ((LeaseKeeper, "renew", count_from_receipt),),
    "no grace to power off": ((ledger, "POWER_OFF_GRACE", timedelta(0)),),
    "refund on request": ((vms, "record_end_order", refund_on_request),),
    "refund twice": ((ledger, "committed_by_machine", refund_twice),),
    "no quantum": ((BillingTerms, "billed", lambda _, span: max(span, timedelta(0))),),
    "boot not reserved": (
        (vms, "record_intent", intend_without_boot),
        (ledger, "reserve_attempt", reserve_without_boot),
    ),
    "launches planned without boot": ((JobState, "can_afford", afford_without_boot),),
    "attempt not reserved again": ((ledger, "reserve_attempt", reserve_no_attempt),),
    "rounding up": ((ledger, "span_for", round_up),),
    "two renewals at once": ((vms, "lock_job", lambda *_: None),),
    "gone when a list omits it": ((diff, "diff_unlisted", bury_at_once),),
    "missed once, missed for ever": ((vms, "record_missing", stay_missed),),
    "a cap read before an order": ((agent, "lease", renew_by_an_old_cap),),
    "launched by an old cap": ((fleet_module, "load_ordered_job", forget_orders),),
    "an old lease may write": ((controllers, "verify_lease", lambda *_: None),),
}
GOOGLE_PROVIDER = "service.clouds.google.GoogleProvider"
MUTANTS: Mapping[str, MoneyMutant] = {
    **{name: MoneyMutant(changes) for name, changes in IN_THE_LEDGER.items()},
    "zone changed under one key": MoneyMutant(
        ((Fleet, "_launch_request", launch_elsewhere),), "aws"
    ),
    "no minimum": MoneyMutant(((BillingTerms, "billed", bill_no_minimum),), "aws"),
    "price without disk": MoneyMutant(((PriceBook, "price_beside", lambda *_: Decimal(0)),), "aws"),
    "STOP on preemption": MoneyMutant(
        ((google_machine, "_scheduling", stop_on_preemption),), "google"
    ),
    "an aggregated list believed": MoneyMutant(
        ((GOOGLE_PROVIDER, "list", list_aggregated),), "google"
    ),
}


def main() -> None:
    """Print after how many runs each was found; fail if one was not, or does not run."""
    parser = argparse.ArgumentParser(prog="python -m tests.money.mutants", description=__doc__)
    parser.add_argument("--mutant", choices=MUTANTS, action="append", help="default: all")
    names = parser.parse_args().mutant or list(MUTANTS)
    logging.disable(logging.CRITICAL)
    survivors, broken = [], []
    with database() as engine:
        print(f"{'mutant':32}killed after")
        for name in names:
            try:
                with open_emulator(MUTANTS[name].cloud) as emulator:
                    runs = runs_to_kill(engine, MUTANTS[name], emulator)
            except Exception as error:  # noqa: BLE001 - the others are played all the same
                print(f"{name:32}broken: {error!r}"[:150], flush=True)
                broken.append(name)
                continue
            print(f"{name:32}{f'{runs} runs' if runs else 'never'}", flush=True)
            survivors += [] if runs else [name]
    if survivors:
        print(f"{', '.join(survivors)} survived {MOST_RUNS} runs")
    if broken:
        print(f"{', '.join(broken)} found nothing: mend them, they do not fit the product")
    sys.exit(1 if survivors or broken else 0)


def runs_to_kill(engine: Engine, mutant: MoneyMutant, emulator: Emulator | None) -> int | None:
    """Return after how many runs a mutant was found; None if it never was.

    Only a promise that is broken kills a mutant. Any other error means that the mutant itself is
    broken, such as one that calls what the product no longer has: that error is raised.
    """
    counts: Counter[str] = Counter()
    with ExitStack() as mutations:
        for where, name, change in mutant.changes:
            place = pkgutil.resolve_name(where) if isinstance(where, str) else where
            mutations.enter_context(patch.object(place, name, change))
        try:
            play(engine, MOST_RUNS, counts=counts, seed=0, emulator=emulator)
        except AssertionError:
            return counts["runs"]
        except ExceptionGroup as several:  # of a run that was not the same when it was repeated
            if several.split(AssertionError)[1] is not None:
                raise
            return counts["runs"]
    return None


@contextmanager
def database() -> Iterator[Engine]:
    """Serve an empty database of our own."""
    with tempfile.TemporaryDirectory(prefix="scavenger-tests-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        with EmbeddedPostgres(directory / "postgres") as server:
            # A crash of the database is another test; its disk would take most of the time here.
            hasty = {"options": "-c synchronous_commit=off"}
            engine = create_engine(server.url(), connect_args=hasty)
            migrate(engine)
            try:
                yield engine
            finally:
                engine.dispose()


if __name__ == "__main__":
    main()
