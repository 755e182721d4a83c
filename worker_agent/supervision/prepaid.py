"""Prepaid: how long a machine may go on, and the leases that make it longer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NoReturn

from worker_agent.client import ControllerClient
from worker_agent.errors import AgentError
from worker_agent.settings import AgentSettings

RENEW_EVERY = 5.0

log = logging.getLogger(__name__)


class Prepaid:
    """How long this machine may go on.

    Lease requests run in a thread of their own: a controller that is slow to answer must delay
    neither the training command's output nor the end of the prepaid time.

    Args:
        clock: Seconds that no change of the calendar moves.
    """

    def __init__(
        self,
        controller: ControllerClient,
        settings: AgentSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._controller = controller
        self._worker = settings.worker
        self._period = min(RENEW_EVERY, settings.prepaid / 3)
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
