"""The cloud's list of machines, fetched once and shared by many jobs.

A list is older than what was written after it was requested. A machine that is missing from it says
something only if the cloud had been asked for that machine before the list, and not again since.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from sqlalchemy import Engine

from service.clouds.executor import CloudExecutor
from service.clouds.provider import Instance, Provider
from service.db import vms
from service.db.database import DATABASE_AWAY
from service.db.vms import LaunchStatus, Vm
from service.errors import CloudError, ProviderUnavailable

log = logging.getLogger(__name__)

LIST_BATCH = "list"
LIST_WAIT = 0.2
LIST_TIMEOUT = timedelta(minutes=1)  # the longest that a call to a provider may take
RETRY_PAUSE = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class CloudListing:
    """One answer of the cloud to a list call.

    Attributes:
        requested_at: Just before the call.
        answered_at: When it had answered; the moment it shows lies between the two.
        instances: Machines by launch key.
        launch_statuses: How far the launches of all machines had come just before the call.
    """

    requested_at: datetime
    answered_at: datetime
    instances: Mapping[str, Instance]
    launch_statuses: frozenset[LaunchStatus]

    def covers(self, vm: Vm) -> bool:
        """Whether the listing says something about a machine: it is in it, or should be."""
        return vm.launch_key in self.instances or vm.launch_status in self.launch_statuses


class CloudInventory:
    """Lists the cloud's machines when the first job needs them; later jobs share the result.

    A failed call fails for all of them, so a cloud that does not answer is not asked once for each
    job. While a call takes long, the listing before it stays valid for a while. All jobs between
    two calls of ``mark_stale`` see the same: an answer that arrives in between waits.

    Args:
        executor: Runs the list calls.
        stopwatch: Returns seconds.
    """

    def __init__(
        self,
        engine: Engine,
        provider: Provider,
        executor: CloudExecutor | None = None,
        stopwatch: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._provider, self._stopwatch = engine, provider, stopwatch
        self._executor = executor or CloudExecutor()
        self._is_due = True
        self._asked_at = self._again_at = datetime.min.replace(tzinfo=UTC)
        self._listing: CloudListing | None = None
        self._answer: CloudListing | None = None
        self._failure: CloudError | None = None

    def mark_stale(self) -> None:
        """List anew when the next job needs it."""
        self._is_due = True

    def close(self) -> None:
        """Begin no further call."""
        self._executor.close(0.0)

    def listing(self, now: datetime) -> CloudListing | None:
        """Return the newest listing; None before the first answer.

        Raises:
            CloudError: The cloud did not answer; the state of its machines is unknown.
        """
        if self._is_due:
            self._is_due = False
            self._attempt(now)
        if self._failure is not None:
            raise ProviderUnavailable(str(self._failure)) from self._failure
        return self._listing

    def _attempt(self, now: datetime) -> None:
        """Start a list call, or fetch the result of the last one, without waiting for long."""
        try:
            if self._is_answered(0.0) and not self._is_resting(now):
                self._asked_at = now
                self._executor.submit(LIST_BATCH, [partial(self._look, now)])
            # A cloud that answers at once is seen as it is now, and a slow one delays no pass.
            if not self._is_answered(LIST_WAIT) and now - self._asked_at > LIST_TIMEOUT:
                raise ProviderUnavailable(f"no answer within {LIST_TIMEOUT}")
        except DATABASE_AWAY:
            raise
        except CloudError as error:
            if str(error) != str(self._failure):
                log.warning("the cloud does not show its machines: %s", error)
            self._failure, self._again_at = error, now + RETRY_PAUSE
        except Exception as error:  # an adapter's error must not stop jobs that need no machine
            log.exception("the list of machines cannot be read")
            self._failure, self._again_at = ProviderUnavailable(repr(error)), now + RETRY_PAUSE

    def _is_answered(self, timeout: float) -> bool:
        """Whether no call is under way; takes what the last one answered."""
        if not self._executor.is_finished(LIST_BATCH, timeout):
            return False
        if self._answer is not None:
            self._listing, self._failure, self._answer = self._answer, None, None
        return True

    def _is_resting(self, now: datetime) -> bool:
        """Whether the cloud failed a moment ago, so that it is not asked again yet."""
        return timedelta(0) < self._again_at - now <= RETRY_PAUSE

    def _look(self, now: datetime) -> None:
        began = self._stopwatch()
        with self._engine.connect() as connection:
            statuses = vms.launch_statuses(connection)
        instances = {instance.launch_key: instance for instance in self._provider.list()}
        answered_at = now + timedelta(seconds=self._stopwatch() - began)
        self._answer = CloudListing(now, answered_at, instances, statuses)
