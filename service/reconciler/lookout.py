"""Lookout: what the cloud shows, asked for once and then shared by many jobs.

A list is older than what was written down since, so that it does not show a machine says something
only of one for which the cloud had been asked when the list was, and not again since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Engine

from service.clouds.provider import Instance, Provider
from service.db import vms
from service.db.vms import Standing, Vm
from service.errors import CloudError, ProviderUnavailable

LONGEST = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Sighting:
    """What the cloud showed.

    Attributes:
        at: Just before it was asked.
        shown: Its machines by launch key.
        standing: How far the launches of all machines were just before that.
    """

    at: datetime
    shown: Mapping[str, Instance]
    standing: frozenset[Standing]

    def tells_of(self, vm: Vm) -> bool:
        """Whether it says something of a machine: it is shown, or should have been."""
        return vm.launch_key in self.shown or vm.standing in self.standing


class Lookout:
    """Looks at the cloud when the first job needs it; all that ask soon after see the same.

    One that failed fails for all of them: a cloud that does not answer is not asked for each job.
    """

    def __init__(self, engine: Engine, provider: Provider) -> None:
        self._engine, self._provider = engine, provider
        self._sighting: Sighting | None = None
        self._failure: CloudError | None = None

    def sighting(self, now: datetime) -> Sighting:
        """Return what the cloud shows, or showed a moment ago.

        Raises:
            CloudError: It shows nothing; nothing is known.
        """
        if self._failure is not None:
            raise ProviderUnavailable(str(self._failure)) from self._failure
        if self._sighting is None or not abs(now - self._sighting.at) <= LONGEST:
            try:
                self._sighting = self._look(now)
            except CloudError as error:
                self._failure = error
                raise
        return self._sighting

    def _look(self, now: datetime) -> Sighting:
        with self._engine.connect() as connection:
            standing = vms.standing(connection)
        shown = {instance.launch_key: instance for instance in self._provider.list()}
        return Sighting(now, shown, standing)
