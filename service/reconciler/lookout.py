"""Lookout: what the cloud shows, asked for once and then shared by many jobs.

A list is older than what was written down since, so that it does not show a machine says something
only of one for which the cloud had been asked when the list was, and not again since.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from sqlalchemy import Engine

from service.clouds.provider import Instance, Provider
from service.db import vms
from service.db.pool import AWAY
from service.db.vms import Standing, Vm
from service.errors import CloudError, ProviderUnavailable
from service.reconciler.courier import Courier
from service.reconciler.deadline import HIDDEN

log = logging.getLogger(__name__)

LOOK = "look"
PATIENCE = 0.2
LONGEST = HIDDEN.after
REST = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Sighting:
    """What the cloud showed.

    Attributes:
        at: Just before it was asked.
        until: When it had answered; which moment between the two it shows, nobody knows.
        shown: Its machines by launch key.
        standing: How far the launches of all machines were just before that.
    """

    at: datetime
    until: datetime
    shown: Mapping[str, Instance]
    standing: frozenset[Standing]

    def tells_of(self, vm: Vm) -> bool:
        """Whether it says something of a machine: it is shown, or should have been."""
        return vm.launch_key in self.shown or vm.standing in self.standing


class Lookout:
    """Looks at the cloud when the first job needs it; all that ask after that see the same.

    One that failed fails for all of them: a cloud that does not answer is not asked for each job.
    While a look takes long the one before is good, for a while.

    Args:
        courier: Looks.
        stopwatch: Seconds since whenever.
    """

    def __init__(
        self,
        engine: Engine,
        provider: Provider,
        courier: Courier | None = None,
        stopwatch: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._provider, self._stopwatch = engine, provider, stopwatch
        self._courier = courier or Courier()
        self._is_due = True
        self._asked_at = self._again_at = datetime.min.replace(tzinfo=UTC)
        self._sighting: Sighting | None = None
        self._failure: CloudError | None = None

    def renew(self) -> None:
        """Look anew when the next job needs it."""
        self._is_due = True

    def close(self) -> None:
        """Look no more."""
        self._courier.close(0.0)

    def sighting(self, now: datetime) -> Sighting | None:
        """Return what the cloud shows, or showed a moment ago; None if its first answer is out.

        Raises:
            CloudError: It shows nothing; nothing is known.
        """
        if self._is_due:
            self._is_due = False
            self._attempt(now)
        if self._failure is not None:
            raise ProviderUnavailable(str(self._failure)) from self._failure
        return self._sighting

    def _attempt(self, now: datetime) -> None:
        """Look, or see what came of the look before, without waiting for long."""
        try:
            if self._courier.is_back(LOOK) and not self._is_resting(now):
                self._asked_at = now
                self._courier.send(LOOK, [partial(self._look, now)])
            if not self._courier.is_back(LOOK, PATIENCE) and now - self._asked_at > LONGEST:
                raise ProviderUnavailable(f"no answer within {LONGEST}")
        except AWAY:
            raise
        except CloudError as error:
            if str(error) != str(self._failure):
                log.warning("the cloud does not show its machines: %s", error)
            self._failure, self._again_at = error, now + REST
        except Exception as error:  # a mistake of the adapter's: nothing is known either
            log.exception("the cloud's machines cannot be read")
            self._failure, self._again_at = ProviderUnavailable(repr(error)), now + REST

    def _is_resting(self, now: datetime) -> bool:
        """Whether the cloud failed a moment ago."""
        return timedelta(0) < self._again_at - now <= REST

    def _look(self, now: datetime) -> None:
        began = self._stopwatch()
        with self._engine.connect() as connection:
            standing = vms.standing(connection)
        shown = {instance.launch_key: instance for instance in self._provider.list()}
        until = now + timedelta(seconds=self._stopwatch() - began)
        self._sighting, self._failure = Sighting(now, until, shown, standing), None
