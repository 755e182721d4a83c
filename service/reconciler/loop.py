"""The loop: a pass over the jobs that have news or whose deadline has come, twice a second.

Any number of controllers may run; each acts for the jobs whose lease it holds. While a job rests
its lease is not prolonged, so that a thousand jobs at rest cost no writes. A job whose tick
fails pauses and is tried again. Neither a failed job nor one that waits for its cloud delays the
others.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Set
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import repeat

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from service.background import Periodic
from service.clouds.inventory import Inventories
from service.db import clock, controllers, jobs
from service.db.controllers import JobLease
from service.db.database import DATABASE_AWAY
from service.errors import CloudError, LeaseLost
from service.observability import metrics
from service.observability.logs import log_context
from service.observability.tracing import span
from service.reconciler.actions import Action, Idle, Unblocked
from service.reconciler.agenda import REVIEW_INTERVAL, Agenda
from service.reconciler.tick import LIST_INTERVAL, Reconciler

log = logging.getLogger(__name__)

PASS_INTERVAL = 0.5
FAILED_TICK_PAUSE = 5.0
MAX_DATABASE_SILENCE = 30.0
PASS_TIMEOUT = 5.0
MAX_TICKS_PER_PASS = 20
LONGEST_PASS = 1.0  # what is left of many due jobs waits for the next pass, which begins at once
MAX_CLOCK_JUMP = timedelta(seconds=1)
ROLL_CALL_INTERVAL = 5.0  # between lists of all unfinished jobs; new ones announce themselves
LOOP_STOP_TIMEOUT = 5.0
OTHERS_INTERVAL = 1.0  # between looks at a job for which another controller acts
LEASE_FRESH = controllers.LEASE_TERM.total_seconds() / 2


class ReconcilerLoop:
    """Runs passes on a thread of its own until it is stopped.

    Args:
        reconciler: Does one tick of one job.
        inventories: List the machines of each cloud; None for some that wait for their clouds.
        seconds: Returns the time by a clock that never goes back.
    """

    def __init__(
        self,
        reconciler: Reconciler,
        inventories: Inventories | None = None,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self.reconciler, self._seconds = reconciler, seconds
        self.inventories = inventories or reconciler.open_inventories()
        self.executors = reconciler.fleet.executors
        self.engine: Engine = reconciler.engine
        self.periodic = Periodic(
            "reconciler", self._timed_pass, repeat(PASS_INTERVAL), stale_after=PASS_TIMEOUT
        )
        self.agenda = Agenda(seconds)
        self.said: dict[str, str] = {}
        self.held: dict[str, JobLease] = {}
        self.parked: dict[str, tuple[JobLease, float]] = {}
        self.prolonged: dict[str, float] = {}
        self.reviewed: dict[str, float] = {}
        self.answered_at = self._seconds()
        self.listed_at = -math.inf
        self.clock_start = datetime.min.replace(tzinfo=UTC)
        self.called_at = -math.inf

    def start(self) -> None:
        """Start the thread."""
        self.executors.call_when_done(self.nudge)
        self.periodic.start()

    def stop(self) -> None:
        """Finish the running tick and what clouds answer soon; machines and training go on."""
        self.periodic.stop()
        self.close()

    def close(self) -> None:
        """Begin no further cloud call, and give the leases back for other controllers to take."""
        self.inventories.close()
        self.executors.close(LOOP_STOP_TIMEOUT)
        with suppress(SQLAlchemyError), self.engine.begin() as connection:
            for lease in self.held.values():
                controllers.release_lease(connection, lease)

    def nudge(self, job: str) -> None:
        """Look at a job soon."""
        self.agenda.note(job)
        self.periodic.wake()

    def nudge_all(self) -> None:
        """Look at all jobs soon: news may have been missed, also of new ones."""
        self.called_at = -math.inf
        self.agenda.note_all()
        self.periodic.wake()

    def _timed_pass(self) -> None:
        with metrics.PASS_SECONDS.time():
            self._pass()

    def _pass(self) -> None:
        began = self._seconds()
        with self.engine.begin() as connection:
            clock.synchronize(connection)
            self._note_clock_jump(began)
            if began - self.called_at >= ROLL_CALL_INTERVAL:
                self.called_at = began
                self.agenda.keep(jobs.to_reconcile(connection))
            kept = controllers.renew_leases(connection, self.held.values(), controllers.LEASE_TERM)
            theirs = controllers.leased_by_others(connection, self._own_leases())
        self._note_answer()
        is_idle = not self.agenda.is_any_due()
        if self.agenda.jobs or not is_idle:
            self._list_machines(is_idle=is_idle)
        ours = self.agenda.jobs - theirs
        self.held = {job: lease for job, lease in self.held.items() if job in ours}
        self.prolonged = dict.fromkeys(kept, began)
        self.reviewed = {job: at for job, at in self.reviewed.items() if job in ours}
        self.executors.forget_all_but(ours)
        if not is_idle:
            self._attend_due(theirs)
        elif self.agenda.is_any_due():
            self.periodic.wake()  # a job is compared with a list that was requested in its pass

    def _attend_due(self, theirs: Set[str]) -> None:
        """Look at the jobs that are due, for about a second; the next pass goes on from there."""
        began = self._seconds()
        for job in self.agenda.due():
            if self.periodic.is_stopping:
                return
            self.agenda.begin(job)
            if job in theirs:
                self.agenda.rest(job, began + OTHERS_INTERVAL)
            else:
                with log_context(partial(dict, job=job)):
                    self._attend(job)
            if self._seconds() - began > LONGEST_PASS:
                self.periodic.wake()
                return

    def _note_clock_jump(self, now: float) -> None:
        """Look at all jobs if more time has passed than the loop's clock counted.

        That clock stands still while the computer sleeps, and the database's may be set.
        """
        start = clock.now(self.engine) - timedelta(seconds=now)
        if abs(start - self.clock_start) > MAX_CLOCK_JUMP:
            self.agenda.note_all()
        self.clock_start = start

    def _own_leases(self) -> list[JobLease]:
        """Return the leases of this controller that may not have expired yet."""
        recent = self._seconds() - controllers.LEASE_TERM.total_seconds()
        self.parked = {job: one for job, one in self.parked.items() if one[1] > recent}
        return [*self.held.values(), *(lease for lease, _ in self.parked.values())]

    def _list_machines(self, *, is_idle: bool) -> None:
        """Ask the clouds for their machines, more rarely while no job waits for the answer."""
        now = self._seconds()
        if is_idle and now - self.listed_at < LIST_INTERVAL.total_seconds():
            return
        self.listed_at = now
        self.inventories.mark_stale()
        self.inventories.request(clock.now(self.engine))
        for cloud in self.inventories:
            try:
                listing = self.inventories.listing(cloud, clock.now(self.engine))
            except CloudError:
                self.agenda.note_listing(cloud, None, is_hidden=True)
            else:
                self.agenda.note_listing(cloud, listing, is_hidden=False)

    def _note_answer(self) -> None:
        """Note that the database answered; while it did not, no worker could be heard either."""
        now = self._seconds()
        if now - self.answered_at > MAX_DATABASE_SILENCE:
            self.reconciler = replace(self.reconciler, started_at=clock.now(self.engine))
        self.answered_at = now

    def _take(self, job: str) -> JobLease | None:
        """Acquire or renew the lease of a job; None while another controller has it.

        A lease that this pass has renewed is good for a while. If it was lost since, the first
        transaction under it notices.
        """
        fresh, held = self.prolonged.get(job, -math.inf) + LEASE_FRESH, self.held.get(job)
        if held is not None and self._seconds() < fresh:
            return held
        if held is None and job in self.parked:
            held, _ = self.parked.pop(job)
        with self.engine.begin() as connection:
            lease = controllers.acquire_lease(connection, job, held, controllers.LEASE_TERM)
        if lease is None:
            self.held.pop(job, None)
        else:
            self.held[job] = lease
        return lease

    def _is_back(self, job: str) -> bool:
        """Whether a job's cloud calls are done; the next tick finds what they did not write."""
        try:
            return self.executors.is_finished(job)
        except (*DATABASE_AWAY, LeaseLost) as error:
            log.warning("%s: the results of its cloud calls could not be stored: %s", job, error)
            return True

    def _tick(self, lease: JobLease) -> tuple[Action, float]:
        """Do one thing for a job, and return for how many seconds it may be left alone.

        Its noise changes slowly and is not looked at in every tick. What a job waited for is taken
        back before anything else is done, so that its noise is looked at in the next tick too.
        """
        now = self._seconds()
        interval = REVIEW_INTERVAL.total_seconds()
        reviews = now >= self.reviewed.get(lease.job, -math.inf) + interval
        moment = clock.now(self.engine)
        action, rest = self.reconciler.tick(lease, moment, self.inventories, reviews=reviews)
        if reviews and not isinstance(action, Unblocked):
            self.reviewed[lease.job] = now
        return action, rest.total_seconds()

    def _attend(self, job: str) -> None:
        """Tick until there is nothing to do; a job whose tick fails pauses, the others go on."""
        try:
            for _ in range(MAX_TICKS_PER_PASS):
                is_finished = self._is_back(job)
                lease = self._take(job)
                if lease is None or not is_finished:
                    # Another controller acts, or the executor says when the calls have ended.
                    return self.agenda.rest(job, self._seconds() + OTHERS_INTERVAL)
                self._note_answer()
                with span("tick", job=job):
                    action, rest = self._tick(lease)
                is_said = action.why == self.said.get(job)
                self.said[job] = action.why
                if not is_said:
                    log.info("%s: %s", job, action.why)
                if is_said or isinstance(action, Idle):
                    return self._leave_alone(job, rest)
        except DATABASE_AWAY:
            # Should the database refuse only what this job asks, the others come first next time.
            self.agenda.rest(job, self._seconds() + FAILED_TICK_PAUSE)
            raise
        except LeaseLost as error:
            self.held.pop(job, None)
            metrics.LEASES_LOST.inc()
            log.info("%s", error)
        except Exception:
            self.agenda.rest(job, self._seconds() + FAILED_TICK_PAUSE)
            log.exception("%s: tick failed, resting for %.0f s", job, FAILED_TICK_PAUSE)

    def _leave_alone(self, job: str, rest: float) -> None:
        """Let a job rest; while it does, another controller may take its lease."""
        now = self._seconds()
        self.agenda.rest(job, now + rest)
        if rest > LEASE_FRESH and job in self.held:
            self.parked[job] = self.held.pop(job), now
