"""Prepaid: how long a machine may go on, and the leases that make it longer."""

from __future__ import annotations

import logging
import time
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
    """

    def __init__(self, controller: ControllerClient, settings: AgentSettings) -> None:
        self._controller = controller
        self._worker = settings.worker
        self._period = min(RENEW_EVERY, settings.prepaid / 3)
        self._end = time.monotonic() + settings.prepaid

    def left(self) -> float:
        """Return the prepaid seconds left, 0 or more."""
        return max(0.0, self._end - time.monotonic())

    def keep_renewing(self) -> NoReturn:
        """Ask for more time again and again; without an answer the end stays where it is."""
        while True:
            self._renew()
            time.sleep(self._period)

    def _renew(self) -> None:
        # Counted from before the request, so a slow network shortens the lease, never extends it.
        asked = time.monotonic()
        try:
            self._end = asked + self._controller.lease(self._worker).remaining
        except AgentError as error:
            log.warning("no new lease, %.0f s left: %s", self.left(), error)
