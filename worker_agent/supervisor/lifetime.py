"""What limits the life of a machine: its lease, a shutdown signal, and the budget of restarts."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn

from scavenger.worker_env import WorkerEnv
from worker_agent.controller import ControllerClient
from worker_agent.errors import AgentError

LEASE_RENEWAL = 5.0

log = logging.getLogger(__name__)


class LeaseKeeper:
    """How long this machine may go on.

    Lease requests run in a thread of their own: a controller that is slow to answer must delay
    neither the training command's output nor the end of the prepaid time.

    Args:
        clock: Seconds that no change of the calendar moves.
    """

    def __init__(
        self,
        controller: ControllerClient,
        settings: WorkerEnv,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._controller = controller
        self._worker = settings.worker
        self._period = min(LEASE_RENEWAL, settings.prepaid / 3)
        self._clock = clock
        self._end = clock() + settings.prepaid

    def left(self) -> float:
        """Return the prepaid seconds left, 0 or more."""
        return max(0.0, self._end - self._clock())

    def keep_renewing(self) -> NoReturn:
        """Ask for more time again and again; without an answer the end stays where it is."""
        while True:
            self.renew()
            time.sleep(self._period)

    def renew(self) -> None:
        """Ask for more time once."""
        # Counted from before the request, so a slow network shortens the lease, never extends it.
        asked = self._clock()
        try:
            self._end = asked + self._controller.lease(self._worker).remaining
        except AgentError as error:
            log.warning("no new lease, %.0f s left: %s", self.left(), error)


SIGNAL_POLL = 0.05


class ShutdownSignal:
    """Remembers that the machine was told to end; told twice, it ends at once."""

    def __init__(self) -> None:
        self._is_heard = False

    @property
    def is_received(self) -> bool:
        """Whether the machine was told to end."""
        return self._is_heard

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Note a SIGTERM; this is its handler.

        Raises:
            SystemExit: It is the second one.
        """
        if self._is_heard:
            sys.exit("supervisor: told to end at once")
        self._is_heard = True

    def sleep(self, seconds: float) -> None:
        """Wait, or return early because the machine was told to end."""
        # A lock or an event here could be held by the very thread the handler interrupts.
        until = time.monotonic() + seconds
        while not self._is_heard and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, SIGNAL_POLL))


HOUR = 3600.0
RESTART_DELAYS = (
    1.0,
    4.0,
    16.0,
)  # one for each restart within an hour, the last well below a minute


class RestartBudget:
    """Counts the restarts of one machine.

    Args:
        pauses: Seconds before each restart within an hour; there are no more than these.
    """

    def __init__(self, pauses: Sequence[float] = RESTART_DELAYS) -> None:
        self._pauses = pauses
        self._at: list[float] = []

    def pause(self, now: float) -> float | None:
        """Return the seconds to wait before another start, and count it; None for no more."""
        self._at = [at for at in self._at if now - at < HOUR]
        if len(self._at) >= len(self._pauses):
            return None
        self._at.append(now)
        return self._pauses[len(self._at) - 1]
