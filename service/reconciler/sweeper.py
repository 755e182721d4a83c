"""Sweeper: looks for machines that are ours and that nobody wants, and ends them with great care.

It is a loaded gun, so a look is announced, judged and stored before it does anything, and of all
controllers one looks at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, Engine

from service.clouds.provider import LAUNCH_KEY, Instance, Provider
from service.db import epochs, jobs, sweeps, vms
from service.db.events import say
from service.db.sweeps import Suspect
from service.errors import CloudError
from service.reconciler.ownership import Ownership, stamp_of
from service.reconciler.verdict import Sight, Verdict, judge

log = logging.getLogger(__name__)

GRACE = 30.0


@dataclass(frozen=True, slots=True)
class Sweeper:
    """What a sweep needs of the world."""

    engine: Engine
    provider: Provider
    ownership: Ownership

    def sweep(self, now: datetime, pause: timedelta) -> Verdict | None:
        """Look once and end what may be ended; None when it is not this controller's turn.

        Args:
            now: The time, of one clock for all controllers.
            pause: How long ago the last sweep must have begun, whoever made it.

        Raises:
            CloudError: The cloud does not show its machines; nothing was ended.
        """
        with self.engine.begin() as connection:
            number = sweeps.begin(connection, now, pause)
        if number is None:
            return None
        # The cloud first: an intent is written before its machine is launched, so whatever is shown
        # by now is known to a database that is read later. The other way round every machine that
        # was launched in between would look like nobody's.
        shown = self.provider.list()
        with self.engine.connect() as connection:
            verdict = judge(self.ownership, self._sight(connection, shown, now))
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

    def _sight(self, connection: Connection, shown: Sequence[Instance], now: datetime) -> Sight:
        # Strangers may carry anything, also what no database can be asked for.
        keys = {one.launch_key for one in shown if LAUNCH_KEY.fullmatch(one.launch_key)}
        tokens = {epochs.token_of(stamp_of(one)) for one in shown}
        before = sweeps.newest(connection, 1)
        return Sight(
            now=now,
            shown=shown,
            known=vms.of_keys(connection, keys),
            launches=epochs.launches(connection, tokens),
            before=before[0] if before else None,
            confirmed=sweeps.confirmed(connection),
            grace=timedelta(seconds=GRACE + self.provider.lag),
        )

    def _end(self, number: int, suspects: Sequence[Suspect], now: datetime) -> None:
        """Order the ends; one that fails is a candidate again in the next sweep."""
        ended = [suspect for suspect in suspects if self._terminate(suspect)]
        with self.engine.begin() as connection:
            sweeps.note_ended(connection, number, len(ended))
            for suspect in ended:
                if jobs.find(connection, suspect.job) is not None:
                    why = f"{suspect.machine} was swept: {suspect.reason}"
                    facts = {"machine": suspect.machine, "sweep": number}
                    say(connection, suspect.job, now, "sweep", why, facts)

    def _terminate(self, suspect: Suspect) -> bool:
        log.warning("sweeping %s: %s", suspect.machine, suspect.reason)
        try:
            self.provider.terminate(suspect.machine)
        except CloudError as error:
            log.warning("%s was not ended, trying again: %s", suspect.machine, error)
            return False
        return True
