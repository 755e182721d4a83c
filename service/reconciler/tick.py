"""One tick: read the world, plan one action, apply it, record one sentence.

Kill the controller anywhere: every effect is preceded by the row that announces it, and the next
tick rereads the world.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import Engine

from service.db.leases import Lease, acting
from service.errors import CloudError
from service.reconciler.action import Action, Launch, Rest, Terminate
from service.reconciler.fleet import Fleet, Pending
from service.reconciler.lookout import Lookout
from service.reconciler.plan import plan
from service.reconciler.reading import read
from service.reconciler.record import record
from service.reconciler.snapshot import Snapshot


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

    def look_out(self) -> Lookout:
        """Begin to look at the cloud, for as many jobs as are ticked with it."""
        return Lookout(self.engine, self.fleet.provider, stopwatch=self.fleet.stopwatch)

    def tick(
        self,
        lease: Lease,
        now: datetime,
        lookout: Lookout | None = None,
        *,
        reviews: bool = True,
    ) -> Action:
        """Do one thing for a job, and return what it was.

        Args:
            lease: The right to act for it.
            now: The moment.
            lookout: Shows the cloud; None for one of its own.
            reviews: Whether a plan that has stood for a while is held against the newest noise.

        Raises:
            LeaseLost: Another controller acts for this job; nothing more was written.
        """
        present, snapshot = self.fleet.follow(now), self._see(lease, now, reviews=reviews)
        pending: Sequence[Pending] = ()
        try:
            found = self.fleet.observe(lease, snapshot, present, lookout or self.look_out())
        except CloudError:
            snapshot = replace(snapshot, is_hidden=True)
        else:
            if found is None:
                return Rest("the cloud has been asked for its machines")
            pending = found.pending
            if found.is_news:
                snapshot = self._see(lease, now, reviews=reviews)
        action = plan(snapshot)
        match action:
            case Launch():
                self.fleet.launch(lease, snapshot, action, present)
            case Terminate():
                self.fleet.terminate(lease, snapshot, action)
            case Rest():
                self.fleet.pursue(lease, snapshot.job, present, pending)
            case _:
                with acting(self.engine, lease) as connection:
                    record(connection, self.fleet.provider.name, snapshot, action)
        return action

    def _see(self, lease: Lease, now: datetime, *, reviews: bool) -> Snapshot:
        """Return everything there is to plan with."""
        provider = self.fleet.provider
        with self.engine.connect() as connection:
            snapshot = read(
                connection, provider.name, lease.job, now, provider.pause, reviews=reviews
            )
        return replace(
            snapshot,
            listening_since=self.started_at,
            boot=timedelta(seconds=provider.boot),
        )
