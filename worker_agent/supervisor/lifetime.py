"""What limits the life of a machine: its lease, a shutdown signal, and the budget of restarts."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from scavenger.worker_env import WorkerEnv
from worker_agent.controller import ControllerClient
from worker_agent.errors import AgentError
from worker_agent.supervisor.power import PowerOffTimer

LEASE_RENEWAL = 5.0

log = logging.getLogger(__name__)


class LeaseKeeper:
    """Renews the lease of this machine and says how much of it is left.

    Renewal runs in a thread of its own: a controller that is slow to answer must delay neither
    the training command's output nor the end of the lease.

    Args:
        clock: A monotonic clock, so that a change of the system time moves no lease.
        on_drain: Called each time the controller says that the worker is to leave.

    Attributes:
        period: Seconds between two renewals.
    """

    def __init__(
        self,
        controller: ControllerClient,
        settings: WorkerEnv,
        clock: Callable[[], float] = time.monotonic,
        on_drain: Callable[[], None] = lambda: None,
    ) -> None:
        self._controller = controller
        self._worker = settings.worker
        self.period = min(LEASE_RENEWAL, settings.prepaid / 3)
        self._clock, self._on_drain = clock, on_drain
        self._timer: PowerOffTimer | None = None
        span = settings.prepaid
        if settings.deadline_file is not None:
            self._timer = PowerOffTimer(Path(settings.deadline_file))
            # The prepaid time runs since the boot, of which the agent's installation is a part.
            span = min(span, self._timer.lease_left())
        self._end = clock() + span

    def left(self) -> float:
        """Return the seconds left, at least 0."""
        return max(0.0, self._end - self._clock())

    def keep_renewing(self) -> NoReturn:
        """Renew periodically; without an answer the lease keeps its end."""
        while True:
            self.renew()
            time.sleep(self.period)

    def renew(self) -> None:
        # Counted from before the request, so a slow network shortens the lease, never extends it.
        requested_at = self._clock()
        try:
            lease = self._controller.lease(self._worker)
        except AgentError as error:
            log.warning("the lease was not renewed, %.0f s are left: %s", self.left(), error)
            return
        self._end = requested_at + lease.remaining
        if lease.drain:
            self._on_drain()
        if self._timer is not None:
            try:
                self._timer.write(self.left())
            except OSError as error:
                log.warning("the computer goes off at its old deadline: %s", error)


SIGNAL_POLL = 0.05


class ShutdownSignal:
    """Whether the machine is to shut down; a second SIGTERM ends it at once.

    A notice of its cloud is none, nor is the end of a job's lease: SIGTERM follows either by rule,
    when the computer shuts down.
    """

    def __init__(self) -> None:
        self.is_received = self._has_had_sigterm = False

    def announce(self) -> None:
        """Shut down, as the cloud takes the machine back, or the job is paused."""
        self.is_received = True

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGTERM.

        Raises:
            SystemExit: It is the second one.
        """
        if self._has_had_sigterm:
            sys.exit("supervisor: second SIGTERM, shutting down at once")
        self.is_received = self._has_had_sigterm = True

    def sleep(self, seconds: float) -> None:
        """Wait, but return early when the machine is told to shut down."""
        # Polling: a lock or event could be held by the very thread that the handler interrupts.
        until = time.monotonic() + seconds
        while not self.is_received and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, SIGNAL_POLL))


HOUR = 3600.0
# Seconds before each restart within an hour; the last is well below the minute after which the
# controller would replace the machine.
RESTART_DELAYS = (1.0, 4.0, 16.0)


class RestartBudget:
    """Counts the restarts of one machine.

    Args:
        delays: Seconds before each restart within an hour, which are all it may have.
    """

    def __init__(self, delays: Sequence[float] = RESTART_DELAYS) -> None:
        self._delays = delays
        self._restarted_at: list[float] = []

    def next_delay(self, now: float) -> float | None:
        """Count a restart and return the seconds to wait before it; None if none is left."""
        self._restarted_at = [at for at in self._restarted_at if now - at < HOUR]
        if len(self._restarted_at) >= len(self._delays):
            return None
        self._restarted_at.append(now)
        return self._delays[len(self._restarted_at) - 1]
