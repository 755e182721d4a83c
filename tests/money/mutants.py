"""``python -m tests.money.mutants``: errors on purpose, each of which the state machine must find.

A test of money that no wrong ledger fails proves nothing.
"""

from __future__ import annotations

import logging
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.pool import NullPool

from service import ledger
from service.db import controllers, vms
from service.db.database import migrate
from service.db.vms import Vm
from service.offers import BillingTerms
from service.postgres.server import EmbeddedPostgres
from service.reconciler import diff
from service.reconciler.diff import VmChange
from service.state.job_state import JobState
from tests.money.runs import play
from worker_agent.supervisor.lifetime import LeaseKeeper

MOST_RUNS = 400

committed_by, intend, order_end = (
    ledger.committed_by_machine,
    vms.record_intent,
    vms.record_end_order,
)
reserve_attempt, missed = ledger.reserve_attempt, vms.record_missing


def count_from_receipt(prepaid: LeaseKeeper) -> None:
    left = prepaid._controller.lease(prepaid._worker).remaining
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


MUTANTS: Mapping[str, tuple[tuple[object, str, object], ...]] = {
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
    "an old lease may write": ((controllers, "verify_lease", lambda *_: None),),
}


def main() -> None:
    """Print after how many runs each was found; fail if one was not."""
    logging.disable(logging.CRITICAL)
    survivors = []
    with database() as engine:
        print(f"{'mutant':32}killed after")
        for name, changes in MUTANTS.items():
            runs = runs_to_kill(engine, changes)
            print(f"{name:32}{f'{runs} runs' if runs else 'never'}", flush=True)
            survivors += [] if runs else [name]
    if survivors:
        sys.exit(f"{', '.join(survivors)} survived {MOST_RUNS} runs")


def runs_to_kill(engine: Engine, changes: tuple[tuple[object, str, object], ...]) -> int | None:
    """Return after how many runs a mutant was found; None if it never was."""
    counts: Counter[str] = Counter()
    undo: list[Callable[[], object]] = []
    for where, name, change in changes:
        mutation = patch.object(where, name, change)
        mutation.start()
        undo.append(mutation.stop)
    try:
        play(engine, MOST_RUNS, counts=counts, seed=0)
    except Exception:  # noqa: BLE001 - all that the state machine finds kills the mutant
        return counts["runs"]
    finally:
        for stop in undo:
            stop()
    return None


@contextmanager
def database() -> Iterator[Engine]:
    """Serve an empty database of our own."""
    with tempfile.TemporaryDirectory(prefix="scavenger-tests-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        with EmbeddedPostgres(directory / "postgres") as server:
            engine = create_engine(server.url(), poolclass=NullPool)
            migrate(engine)
            yield engine


if __name__ == "__main__":
    main()
