"""The garbage collector: terminates machines of this installation that no job needs.

A sweep is announced, judged and stored before it terminates anything, and only one controller
sweeps at a time. It runs on a thread of its own, so that a slow cloud delays no job.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain, repeat

from sqlalchemy import Connection, Engine

from scavenger.schemas.machines import OrphanView
from service.background import Periodic
from service.clouds.labels import ResourceLabels, launch_stamp_of
from service.clouds.provider import LAUNCH_KEY_PATTERN, Instance, Provider
from service.db import clock, jobs, sweeps, vms
from service.db.jobs import record_event
from service.errors import CloudError
from service.garbage_collection.judge import SweepInput, SweepVerdict, judge
from service.observability import metrics

log = logging.getLogger(__name__)

MIN_ORPHAN_AGE = 30.0


@dataclass(frozen=True, slots=True)
class GarbageCollector:
    """What a sweep needs of the world.

    Attributes:
        recent: Returns what the cloud showed a moment ago, if the reconciler has just asked: clouds
            refuse callers that list often.
    """

    engine: Engine
    provider: Provider
    resource_labels: ResourceLabels
    recent: Callable[[], tuple[Instance, ...] | None] = lambda: None

    def sweep(self, now: datetime, pause: timedelta) -> SweepVerdict | None:
        """Look once and end what may be ended; None when it is not this controller's turn.

        Args:
            now: The time, of one clock for all controllers.
            pause: How long ago the last sweep of any controller must have begun.

        Raises:
            CloudError: The cloud does not show its machines; nothing was ended.
        """
        with self.engine.begin() as connection:
            number = sweeps.begin(connection, self.provider.name, now, pause)
        if number is None:
            return None
        # The cloud first: an intent is written before its machine is launched, so a database that
        # is read later knows every machine of the list. The other way round, a machine launched in
        # between would look like an orphan.
        instances = self.recent()
        if instances is None:
            instances = self.provider.list()
        with self.engine.connect() as connection:
            verdict = judge(self.resource_labels, self._read_input(connection, instances, now))
        with self.engine.begin() as connection:
            is_mine = sweeps.record(
                connection,
                number,
                shown=verdict.shown,
                suspects=verdict.suspects,
                tripped=verdict.tripped,
            )
        if not is_mine:
            return None
        self._end(number, verdict.ended, now)
        return verdict

    def _read_input(
        self, connection: Connection, instances: Sequence[Instance], now: datetime
    ) -> SweepInput:
        # Strangers may carry anything, also what no database can be asked for.
        keys = {one.launch_key for one in instances if LAUNCH_KEY_PATTERN.fullmatch(one.launch_key)}
        counter_ids = {vms.counter_id_of(launch_stamp_of(one)) for one in instances}
        previous = sweeps.newest(connection, 1, cloud=self.provider.name)
        return SweepInput(
            now=now,
            instances=instances,
            known=vms.by_launch_key(connection, keys),
            launches=vms.launch_counts(connection, counter_ids),
            previous_sweep=previous[0] if previous else None,
            confirmed=sweeps.confirmed_orphans(connection, self.provider.name),
            grace=timedelta(seconds=MIN_ORPHAN_AGE + self.provider.traits.max_list_lag_seconds),
        )

    def _end(self, number: int, orphans: Sequence[OrphanView], now: datetime) -> None:
        """Order the ends; one that fails is judged again in the next sweep."""
        ended = [orphan for orphan in orphans if self._terminate(orphan)]
        with self.engine.begin() as connection:
            sweeps.record_ended(connection, number, len(ended))
            for orphan in ended:
                if jobs.find(connection, orphan.job) is not None:
                    why = f"{orphan.machine} was swept: {orphan.reason}"
                    facts = {"machine": orphan.machine, "sweep": number}
                    record_event(connection, orphan.job, now, "sweep", why, facts)

    def _terminate(self, orphan: OrphanView) -> bool:
        log.warning("terminating orphaned machine %s: %s", orphan.machine, orphan.reason)
        try:
            self.provider.terminate(orphan.machine)
        except CloudError as error:
            log.warning("%s was not ended, trying again: %s", orphan.machine, error)
            return False
        return True


FAST_SWEEPS, FAST_SWEEP_PAUSE, SWEEP_PAUSE = 20, 10.0, 30.0
SWEEP_TIMEOUT = 3 * SWEEP_PAUSE
SWEEP_STOP_TIMEOUT = 5.0


class CollectorLoop:
    """Sweeps until it is stopped, on a thread of its own: a slow cloud delays no job."""

    def __init__(self, collector: GarbageCollector) -> None:
        self.collector = collector
        self.reported: str | None = None
        self.pause = FAST_SWEEP_PAUSE
        self.periodic = Periodic(
            "sweeper",
            self.sweep,
            self._pauses(),
            stale_after=SWEEP_TIMEOUT,
            stop_timeout=SWEEP_STOP_TIMEOUT,
            on_failure=metrics.SWEEP_RESULTS.labels("failed").inc,
        )

    def sweep(self) -> None:
        """Sweep once, unless another controller does; report when machines are held back."""
        with self.collector.engine.connect() as connection:
            now = clock.read(connection)
        verdict = self.collector.sweep(now, timedelta(seconds=self.pause))
        if verdict is None:
            return
        metrics.SWEEP_RESULTS.labels(sweep_result(verdict)).inc()
        if verdict.tripped != self.reported:
            self.reported = verdict.tripped
            if self.reported is not None:
                log.warning(
                    "%s; no machine is terminated until: scavenger admin sweep --confirm",
                    self.reported,
                )

    def _pauses(self) -> Iterator[float]:
        for self.pause in sweep_pauses():
            yield self.pause


def sweep_result(verdict: SweepVerdict) -> str:
    """Return the word for what came of a sweep."""
    if verdict.tripped is not None:
        return "held"
    return "ended" if verdict.ended else "clean"


def sweep_pauses() -> Iterator[float]:
    """Return the seconds between sweeps: short ones first, for what a crash left behind."""
    return chain(repeat(FAST_SWEEP_PAUSE, FAST_SWEEPS), repeat(SWEEP_PAUSE))
