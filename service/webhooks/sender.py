"""The sender: makes deliveries of new events, and tries those that are due.

All controllers of a database share the work. A try is counted, and the next one postponed, in a
transaction before the request leaves. A controller that dies in between has therefore used up one
try, and the delivery goes on as after any failure.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import repeat

from sqlalchemy import Engine

from service.auth.tokens import ControllerKeys
from service.background import Periodic
from service.db import webhooks
from service.db.webhooks import DueDelivery, StoredWebhook
from service.errors import AddressRefused, Unanswered
from service.observability import metrics
from service.outbound import OutboundAnswer, OutboundClient
from service.webhooks.messages import (
    MAX_TRIES,
    SECRET_OVERLAP,
    TEST_TRIES,
    compose_message,
    next_try_after,
)

log = logging.getLogger(__name__)

SEND_INTERVAL = 2.0
STOP_TIMEOUT = 7.0  # a little longer than a request takes
AT_ONCE, AT_ONCE_OF_EACH = 32, 8
GIVE_UP_AFTER = timedelta(days=5)
GONE_STATUS = 410

TryOutcome = OutboundAnswer | AddressRefused | Unanswered


class WebhookSender:
    """Sends events to webhooks.

    Args:
        engine: The database.
        keys: Signs what is sent.
        address: Of the controller, as people reach it.
        outbound: Connects to the addresses that users chose.
        rng: Spreads the tries.
        now: Tells the time that all controllers share.
    """

    def __init__(
        self,
        engine: Engine,
        keys: ControllerKeys,
        address: str,
        outbound: OutboundClient,
        rng: random.Random,
        now: Callable[[], datetime],
    ) -> None:
        self.engine, self.keys, self.address = engine, keys, address
        self.outbound, self.rng, self.now = outbound, rng, now
        self.periodic = Periodic(
            "webhooks", self.run_once, repeat(SEND_INTERVAL), stop_timeout=STOP_TIMEOUT
        )

    def run_once(self) -> None:
        """Make deliveries of new events, and try what is due until nothing is."""
        with self.engine.begin() as connection:
            webhooks.make_deliveries(connection, self.now())
        while (claimed := self._claim()) and not self.periodic.is_stopping:
            for due, outcome in zip(claimed, asyncio.run(self._send_all(claimed)), strict=True):
                self._record(due, outcome)

    def _claim(self) -> Sequence[DueDelivery]:
        """Return deliveries to try, each counted and postponed before it is tried."""
        now, claimed = self.now(), []
        with self.engine.begin() as connection:
            for due in webhooks.claim_due(connection, now, AT_ONCE_OF_EACH, AT_ONCE):
                delivery, why = due.delivery, due.webhook.disabled_why
                if why is not None and delivery.event is not None:
                    webhooks.abandon(connection, delivery.number, f"not sent: {why}", now)
                elif delivery.attempts >= tries_of(due):
                    why = "the controller ended during the last try, and heard no answer"
                    webhooks.abandon(connection, delivery.number, why, now)
                else:
                    next_try_at = next_try_after(delivery.attempts + 1, now, self.rng)
                    webhooks.record_attempt(connection, delivery.number, next_try_at)
                    claimed.append(due)
        return claimed

    async def _send_all(self, claimed: Sequence[DueDelivery]) -> Sequence[TryOutcome]:
        return await asyncio.gather(*(self._send(due) for due in claimed))

    async def _send(self, due: DueDelivery) -> TryOutcome:
        now = self.now()
        secrets = self._secrets(due.webhook, now)
        message = compose_message(due.webhook, due.delivery, secrets, self.address, now)
        try:
            return await self.outbound.send(
                "POST", due.webhook.url, message.content, message.headers
            )
        except (AddressRefused, Unanswered) as error:
            return error

    def _secrets(self, webhook: StoredWebhook, now: datetime) -> Sequence[bytes]:
        """Return the secrets that sign: the one before, too, for a day after a rotation."""
        numbers = [webhook.rotations]
        if webhook.rotated_at is not None and now < webhook.rotated_at + SECRET_OVERLAP:
            numbers.append(webhook.rotations - 1)
        return [self.keys.webhook_secret(webhook.id, number) for number in numbers]

    def _record(self, due: DueDelivery, outcome: TryOutcome) -> None:
        """Store what became of one try."""
        now, status = self.now(), None
        if isinstance(outcome, OutboundAnswer):
            status = outcome.status
            if 200 <= status < 300:
                metrics.WEBHOOK_TRIES.labels("delivered").inc()
                with self.engine.begin() as connection:
                    webhooks.record_success(connection, due, status, now)
                return
        metrics.WEBHOOK_TRIES.labels("failed").inc()
        is_last = status == GONE_STATUS or due.delivery.attempts + 1 >= tries_of(due)
        since = due.webhook.failing_since or now
        if due.webhook.enabled_at is not None:
            since = max(since, due.webhook.enabled_at)
        gave_up_why = None
        if status == GONE_STATUS:
            gave_up_why = "the receiver answered 410 Gone: it wants no more"
        elif is_last and now - since >= GIVE_UP_AFTER:
            gave_up_why = f"no event could be delivered since {since:%Y-%m-%d %H:%M} UTC"
        if gave_up_why is not None and due.delivery.event is not None:
            log.warning("webhook %s is switched off: %s", due.webhook.id, gave_up_why)
        told = failure_in_words(outcome)
        with self.engine.begin() as connection:
            webhooks.record_failure(
                connection,
                due,
                now,
                told,
                status=status,
                is_last=is_last,
                gave_up_why=gave_up_why,
            )


def tries_of(due: DueDelivery) -> int:
    """Return how often a delivery may be tried."""
    return TEST_TRIES if due.delivery.event is None else MAX_TRIES


def failure_in_words(outcome: TryOutcome) -> str:
    """Say why a try failed.

    >>> failure_in_words(OutboundAnswer(302, b""))
    'the receiver answered 302; redirects are not followed: give the webhook the new address'
    """
    match outcome:
        case OutboundAnswer(status):
            said = f"the receiver answered {status}"
            if 300 <= status < 400:
                return f"{said}; redirects are not followed: give the webhook the new address"
            return said
        case AddressRefused():
            return f"the controller does not connect there: {outcome}"
        case Unanswered():
            return str(outcome)
