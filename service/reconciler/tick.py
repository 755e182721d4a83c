"""One tick: read the world, plan one action, apply it, record one sentence.

Kill the controller anywhere: every effect is preceded by the row that announces it, and the next
tick rereads the world.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import Engine

from service.clouds.inventory import Inventories
from service.db import orders
from service.db.controllers import JobLease, under_lease
from service.db.shortages import active_shortages
from service.errors import CloudError
from service.reconciler.actions import Action, Idle, Launch, Terminate
from service.reconciler.agenda import time_to_rest
from service.reconciler.apply import record_action
from service.reconciler.diff import is_overdue
from service.reconciler.fleet import Fleet, PendingChange
from service.reconciler.plan import plan
from service.reconciler.timeouts import may_be_fruitless
from service.state.job_state import JobState
from service.state.loader import load_job_state

LIST_INTERVAL = timedelta(seconds=2)  # between lists of the cloud while no job is looked at


@dataclass(frozen=True, slots=True)
class Reconciler:
    """What a tick needs of the world.

    Attributes:
        started_at: When this controller began to listen.
    """

    fleet: Fleet
    started_at: datetime

    @property
    def engine(self) -> Engine:
        """The database."""
        return self.fleet.engine

    def open_inventories(self) -> Inventories:
        """Begin to look at the clouds, for as many jobs as are ticked with it."""
        return Inventories.of(self.engine, self.fleet.clouds, stopwatch=self.fleet.stopwatch)

    def tick(
        self,
        lease: JobLease,
        now: datetime,
        inventories: Inventories | None = None,
        *,
        reviews: bool = True,
    ) -> tuple[Action, timedelta]:
        """Do one thing for a job; return what it was, and how long the job may be left alone.

        Args:
            lease: The right to act for it.
            now: The moment.
            inventories: Show the clouds; None for some of its own.
            reviews: Whether to check if the noise scale has drifted since the configuration was
                chosen.

        Raises:
            LeaseLost: Another controller acts for this job; nothing more was written.
        """
        present, state = self.fleet.clock_from(now), self._see(lease, now, reviews=reviews)
        pending: Sequence[PendingChange] = ()
        is_unjudged = False
        try:
            found = self.fleet.compare_with_cloud(
                lease, state, present, inventories or self.open_inventories()
            )
        except CloudError as error:
            state = replace(state, is_hidden=True, hidden_reason=str(error))
        else:
            if found is None:
                return Idle("the cloud has been asked for its machines"), timedelta(0)
            pending, is_unjudged = found.pending, found.is_unlisted or found.is_news
            if found.is_news:
                state = self._see(lease, now, reviews=reviews)
        action = plan(state)
        match action:
            case Launch():
                self.fleet.launch(lease, state, action, present)
            case Terminate():
                self.fleet.terminate(lease, state, action)
            case Idle():
                self.fleet.retry_pending(lease, state.job, present, pending)
            case _:
                machine_type = self.fleet.clouds.default.traits.machine_type
                with under_lease(self.engine, lease) as connection:
                    if orders.is_given_since(connection, lease.job, state.standing.newest):
                        return Idle("an order has come: deciding again"), timedelta(0)
                    record_action(connection, machine_type, state, action)
        rest = time_to_rest(state, action)
        # What the list at hand says nothing of yet, the next one does, though it may be the same.
        if is_unjudged or any(is_overdue(vm, now, state.boot) for vm in state.vms):
            rest = min(rest, LIST_INTERVAL)
        return action, rest

    def _see(self, lease: JobLease, now: datetime, *, reviews: bool) -> JobState:
        """Return everything there is to plan with."""
        clouds = self.fleet.clouds
        with self.engine.connect() as connection:
            state = load_job_state(
                connection,
                clouds.default.traits.machine_type,
                lease.job,
                now,
                lambda spec: clouds.traits_of(spec).resize_seconds,
                reviews=reviews,
                needs_fruitless=may_be_fruitless,
            )
            spec = state.job.spec
            places = clouds.places_for(spec)
            short = active_shortages(connection, {offer.cloud for offer in places}, now)
        return replace(
            state,
            listening_since=self.started_at,
            boot=timedelta(seconds=clouds.traits_of(spec).max_boot_seconds),
            places=places,
            shortages=tuple(each for each in short if any(each.covers(one) for one in places)),
        )
