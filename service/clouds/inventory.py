"""The cloud's list of machines, fetched once and shared by many jobs.

A list is older than what was written after it was requested. A machine that is missing from it says
something only if the cloud had been asked for that machine before the list, and not again since.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from sqlalchemy import Engine

from service.clouds.clouds import Clouds
from service.clouds.executor import CloudExecutor
from service.clouds.provider import Instance, Provider
from service.db import controllers, vms
from service.db.database import DATABASE_AWAY
from service.db.vms import LaunchStatus, Vm
from service.errors import (
    AccountRefused,
    CloudError,
    CloudsFileRefused,
    CredentialsRefused,
    ProviderUnavailable,
    Throttled,
)

log = logging.getLogger(__name__)

HIDDEN_ADVICE: Mapping[type[CloudError], str] = {
    CredentialsRefused: "it refuses the controller; its log says what to correct",
    Throttled: "it wants to be asked more slowly",
}
LIST_BATCH = "list"
LIST_WAIT = 0.2
LIST_TIMEOUT = timedelta(minutes=1)  # the longest that a call to a provider may take
RETRY_PAUSE = timedelta(seconds=5)
THROTTLED_PAUSE = timedelta(seconds=30)


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
    two calls of ``mark_stale`` see the same: an answer that arrives in between waits. A cloud that
    does not want to be asked often is asked at its pace, and one that throttles more rarely.

    Before the first list it makes sure that the provider leads to the account it led to before:
    machines of another account would look gone.

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
        self._is_due, self._is_verified = True, False
        self._asked_at = self._again_at = datetime.min.replace(tzinfo=UTC)
        self._listing: CloudListing | None = None
        self._answer: CloudListing | None = None
        self._failure: CloudError | None = None
        self._waits_until: float | None = None
        self._shown: tuple[float, tuple[Instance, ...]] | None = None

    def mark_stale(self) -> None:
        """List anew when the next job needs it."""
        self._is_due = True

    def request(self, now: datetime, waits_until: float) -> None:
        """Begin a list call if one is due, without waiting for it.

        Args:
            now: The time.
            waits_until: Until when the next look waits for the answer, by the stopwatch.
        """
        if self._is_due:
            self._is_due, self._waits_until = False, waits_until
            self._attempt(now, self._begin)

    def recent(self) -> tuple[Instance, ...] | None:
        """Return what the newest list showed, unless it is old; any thread may ask.

        None where the cloud does not mind to be listed as often as may be.
        """
        shown, interval = self._shown, self._provider.traits.list_interval_seconds
        if shown is None or self._stopwatch() - shown[0] >= 2 * interval:
            return None
        return shown[1]

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
            self._attempt(now, self._begin)
            self._attempt(now, self._await_answer)
        elif self._waits_until is not None:
            self._attempt(now, self._await_answer)
        if self._failure is not None:
            # Without the cloud's own words: they may hold a new number at every call, and a job
            # says once what it waits for.
            advice = HIDDEN_ADVICE.get(type(self._failure), "read the controller's log")
            why = f"{self._provider.name} does not show its machines: {advice}"
            raise ProviderUnavailable(why) from self._failure
        return self._listing

    def _begin(self, now: datetime) -> None:
        """Start a list call, unless one is under way or it is too soon."""
        if self._is_answered(0.0) and not self._is_resting(now) and not self._is_paced(now):
            self._asked_at = now
            self._executor.submit(LIST_BATCH, [partial(self._look, now)])

    def _await_answer(self, now: datetime) -> None:
        """Wait for the result of a list call, but not for long."""
        wait = LIST_WAIT
        if self._waits_until is not None:
            wait = min(max(self._waits_until - self._stopwatch(), 0.0), LIST_WAIT)
            self._waits_until = None
        # A cloud that answers at once is seen as it is now, and a slow one delays no pass.
        if not self._is_answered(wait) and now - self._asked_at > LIST_TIMEOUT:
            raise ProviderUnavailable(f"no answer within {LIST_TIMEOUT}")

    def _attempt(self, now: datetime, do: Callable[[datetime], None]) -> None:
        """Do it; a failure is kept for all who ask for the list."""
        try:
            do(now)
        except DATABASE_AWAY:
            raise
        except CloudError as error:
            if str(error) != str(self._failure):
                log.warning("%s does not show its machines: %s", self._provider.name, error)
            pause = THROTTLED_PAUSE if isinstance(error, Throttled) else RETRY_PAUSE
            self._failure, self._again_at = error, now + pause
        except (AccountRefused, CloudsFileRefused) as error:
            if str(error) != str(self._failure):
                log.error("%s", error)
            # No call mends a wrong entry: until a person acts, the cloud is asked rarely.
            self._failure, self._again_at = ProviderUnavailable(str(error)), now + THROTTLED_PAUSE
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
        return timedelta(0) < self._again_at - now <= THROTTLED_PAUSE

    def _is_paced(self, now: datetime) -> bool:
        """Whether the cloud was asked so lately that it need not be asked again yet."""
        interval = timedelta(seconds=self._provider.traits.list_interval_seconds)
        return timedelta(0) <= now - self._asked_at < interval

    def _look(self, now: datetime) -> None:
        began = self._stopwatch()
        if not self._is_verified:
            account = self._provider.account
            with self._engine.begin() as connection:
                controllers.check_account(connection, self._provider.name, account)
            self._is_verified = True
        with self._engine.connect() as connection:
            statuses = vms.launch_statuses(connection)
        listed = self._provider.list()
        self._shown = began, listed
        instances = {instance.launch_key: instance for instance in listed}
        answered_at = now + timedelta(seconds=self._stopwatch() - began)
        self._answer = CloudListing(now, answered_at, instances, statuses)


class Inventories:
    """The inventories of all clouds of a controller.

    Args:
        inventories: By the name of the cloud.
        stopwatch: Returns seconds, the same for all of them.
    """

    def __init__(
        self,
        inventories: Mapping[str, CloudInventory],
        stopwatch: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inventories, self._stopwatch = inventories, stopwatch

    @classmethod
    def of(
        cls,
        engine: Engine,
        clouds: Clouds,
        threads: int = 0,
        stopwatch: Callable[[], float] = time.monotonic,
    ) -> Inventories:
        """Return one inventory for each cloud, each with so many threads of its own."""
        return cls(
            {
                provider.name: CloudInventory(
                    engine, provider, CloudExecutor(threads, f"lists-{provider.name}"), stopwatch
                )
                for provider in clouds
            },
            stopwatch,
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._inventories)

    def mark_stale(self) -> None:
        """List every cloud anew when the next job needs it."""
        for inventory in self._inventories.values():
            inventory.mark_stale()

    def close(self) -> None:
        """Begin no further call."""
        for inventory in self._inventories.values():
            inventory.close()

    def request(self, now: datetime) -> None:
        """Begin all list calls that are due: slow clouds are waited for together."""
        waits_until = self._stopwatch() + LIST_WAIT
        for inventory in self._inventories.values():
            inventory.request(now, waits_until)

    def recent(self, cloud: str) -> tuple[Instance, ...] | None:
        """Return what the newest list of a cloud showed, unless it is old."""
        return self._inventories[cloud].recent()

    def listing(self, cloud: str, now: datetime) -> CloudListing | None:
        """Return the newest listing of a cloud; None before the first answer.

        Raises:
            CloudError: The cloud did not answer; the state of its machines is unknown.
        """
        if cloud not in self._inventories:
            raise ProviderUnavailable(f"the clouds file has no entry {cloud} any more")
        return self._inventories[cloud].listing(now)
