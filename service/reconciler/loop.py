"""The loop: one pass over all jobs whenever there is news, and every half second.

Any number of controllers may run; each acts for the jobs whose lease it holds. A job whose tick
fails pauses and is tried again. Neither a failed job nor one that waits for its cloud delays the
others.
"""

from __future__ import annotations

import logging
import math
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import repeat

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from service.background import Periodic
from service.clouds.inventory import CloudInventory
from service.db import clock, controllers, jobs
from service.db.controllers import JobLease
from service.db.database import DATABASE_AWAY
from service.errors import LeaseLost
from service.observability import metrics
from service.observability.logs import log_context
from service.observability.tracing import span
from service.reconciler.actions import Action, Idle, Unblocked
from service.reconciler.tick import Reconciler

log = logging.getLogger(__name__)

PASS_INTERVAL = 0.5
FAILED_TICK_PAUSE = 5.0
MAX_DATABASE_SILENCE = 30.0
PASS_TIMEOUT = 5.0
MAX_TICKS_PER_PASS = 20
LOOP_STOP_TIMEOUT = 5.0
REVIEW_INTERVAL = 15.0
LEASE_FRESH = controllers.LEASE_TERM.total_seconds() / 2


class ReconcilerLoop:
    """Runs a pass over all jobs again and again, on a thread of its own, until it is stopped.

    Args:
        reconciler: Does one tick of one job.
        inventory: Lists the cloud's machines; None for one that waits for the cloud.
    """

    def __init__(self, reconciler: Reconciler, inventory: CloudInventory | None = None) -> None:
        self.reconciler = reconciler
        self.inventory = inventory or reconciler.open_inventory()
        self.executor = reconciler.fleet.executor
        self.engine: Engine = reconciler.engine
        self.periodic = Periodic(
            "reconciler", self._timed_pass, repeat(PASS_INTERVAL), patience=PASS_TIMEOUT
        )
        self.resting: dict[str, float] = {}
        self.said: dict[str, str] = {}
        self.held: dict[str, JobLease] = {}
        self.prolonged: dict[str, float] = {}
        self.reviewed: dict[str, float] = {}
        self.answered_at = time.monotonic()

    def start(self) -> None:
        """Start the thread."""
        self.executor.call_when_done(self.nudge)
        self.periodic.start()

    def stop(self) -> None:
        """Finish the running tick and what clouds answer soon; machines and training go on."""
        self.periodic.stop()
        self.close()

    def close(self) -> None:
        """Begin no further cloud call, and give the leases back for other controllers to take."""
        self.inventory.close()
        self.executor.close(LOOP_STOP_TIMEOUT)
        with suppress(SQLAlchemyError), self.engine.begin() as connection:
            for lease in self.held.values():
                controllers.release_lease(connection, lease)

    def nudge(self) -> None:
        """Look at all jobs soon."""
        self.periodic.wake()

    def _timed_pass(self) -> None:
        with metrics.PASS_SECONDS.time():
            self._pass()

    def _pass(self) -> None:
        began = time.monotonic()
        with self.engine.begin() as connection:
            clock.synchronize(connection)
            waiting = jobs.needing_attention(connection)
            kept = controllers.renew_leases(connection, self.held.values(), controllers.LEASE_TERM)
            theirs = controllers.leased_by_others(connection, self.held.values())
        self._note_answer()
        ours = [job for job in waiting if job not in theirs]
        self.held = {job: lease for job, lease in self.held.items() if job in ours}
        self.prolonged = dict.fromkeys(kept, began)
        self.reviewed = {job: at for job, at in self.reviewed.items() if job in self.held}
        self.executor.forget_all_but(ours)
        self.inventory.renew()
        for job in ours:
            if self.resting.get(job, 0.0) <= time.monotonic() and not self.periodic.is_stopping:
                with log_context(partial(dict, job=job)):
                    self._attend(job)

    def _note_answer(self) -> None:
        """Note that the database answered; while it did not, no worker could be heard either."""
        now = time.monotonic()
        if now - self.answered_at > MAX_DATABASE_SILENCE:
            self.reconciler = replace(self.reconciler, started_at=clock.now(self.engine))
        self.answered_at = now

    def _take(self, job: str) -> JobLease | None:
        """Acquire or renew the lease of a job; None while another controller has it.

        A lease that this pass has renewed is good for a while. If it was lost since, the first
        transaction under it notices.
        """
        fresh, held = self.prolonged.get(job, -math.inf) + LEASE_FRESH, self.held.get(job)
        if held is not None and time.monotonic() < fresh:
            return held
        with self.engine.begin() as connection:
            lease = controllers.acquire_lease(
                connection, job, self.held.get(job), controllers.LEASE_TERM
            )
        if lease is None:
            self.held.pop(job, None)
        else:
            self.held[job] = lease
        return lease

    def _is_back(self, job: str) -> bool:
        """Whether a job's cloud calls are done; the next tick finds what they did not write."""
        try:
            return self.executor.is_finished(job)
        except (*DATABASE_AWAY, LeaseLost) as error:
            log.warning("%s: what its cloud answered could not be written down: %s", job, error)
            return True

    def _tick(self, lease: JobLease) -> Action:
        """Do one thing for a job; its noise changes slowly and is not reviewed in every pass.

        A tick that only reports a job as unblocked reviewed nothing, so the next one reviews.
        """
        now = time.monotonic()
        reviews = now >= self.reviewed.get(lease.job, -math.inf) + REVIEW_INTERVAL
        moment = clock.now(self.engine)
        action = self.reconciler.tick(lease, moment, self.inventory, reviews=reviews)
        if reviews and not isinstance(action, Unblocked):
            self.reviewed[lease.job] = now
        return action

    def _attend(self, job: str) -> None:
        """Tick until there is nothing to do; a job that fails pauses, and the others go on."""
        try:
            for _ in range(MAX_TICKS_PER_PASS):
                is_finished = self._is_back(job)
                lease = self._take(job)
                if lease is None or not is_finished:
                    return
                self._note_answer()
                with span("tick", job=job):
                    action = self._tick(lease)
                if action.why == self.said.get(job):
                    return
                self.said[job] = action.why
                log.info("%s: %s", job, action.why)
                if isinstance(action, Idle):
                    return
        except DATABASE_AWAY:
            raise
        except LeaseLost as error:
            self.held.pop(job, None)
            metrics.LEASES_LOST.inc()
            log.info("%s", error)
        except Exception:
            self.resting[job] = time.monotonic() + FAILED_TICK_PAUSE
            log.exception("%s: tick failed, trying again in %.0f s", job, FAILED_TICK_PAUSE)
