"""What is sent to a webhook, how it is signed, and when it is tried again. Pure.

https://www.standardwebhooks.com: the signature covers id, time and body, so that a receiver can
refuse what was changed, sent by another, or recorded and sent again.
"""

from __future__ import annotations

import hmac
import json
import random
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from scavenger.schemas.webhooks import WebhookKind
from service.db.webhooks import StoredDelivery, StoredWebhook

SECRET_PREFIX = "whsec_"  # noqa: S105 - begins a secret
SECRET_OVERLAP = timedelta(hours=24)

# After the first try; all together less than 24 h.
RETRY_DELAYS = (15.0, 300.0, 1800.0, 7200.0, 14400.0, 25200.0, 36000.0)
MAX_TRIES = len(RETRY_DELAYS) + 1
SHORTEST_SHARE = 0.75  # of a delay; receivers that failed together are not asked together again
LAST_TRY_GRACE = timedelta(seconds=15)  # after which a controller that tries has died
TEST_TRIES = 1
MAX_TEXT_LENGTH = 2000


@dataclass(frozen=True, slots=True)
class OutboundMessage:
    """What is sent: one POST."""

    headers: Mapping[str, str]
    content: bytes


def next_try_after(attempts: int, now: datetime, rng: random.Random) -> datetime:
    """Return when a delivery is due again if the attempt of this number (from 1) fails."""
    if attempts > len(RETRY_DELAYS):
        return now + LAST_TRY_GRACE
    return now + timedelta(seconds=RETRY_DELAYS[attempts - 1] * rng.uniform(SHORTEST_SHARE, 1.0))


def compose_message(
    webhook: StoredWebhook,
    delivery: StoredDelivery,
    secrets: Sequence[bytes],
    address: str,
    now: datetime,
) -> OutboundMessage:
    """Compose the request of one try.

    Args:
        webhook: Where it goes.
        delivery: What it tells.
        secrets: Sign it, the present one first.
        address: Of the controller, as people reach it.
        now: The present moment, which the signature covers.
    """
    match webhook.kind:
        case WebhookKind.GENERIC:
            content = event_document(delivery, address)
        case WebhookKind.SLACK:
            content = {"text": slack_text(delivery, address)}
    body = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    headers = {"Content-Type": "application/json", "webhook-id": delivery.message_id}
    if webhook.kind is WebhookKind.GENERIC:
        moment = str(int(now.timestamp()))
        signed = sign(secrets, delivery.message_id, moment, body)
        headers |= {"webhook-timestamp": moment, "webhook-signature": signed}
    return OutboundMessage(headers, body)


def sign(secrets: Sequence[bytes], message_id: str, moment: str, body: bytes) -> str:
    """Return the signatures of a message, one by each secret.

    >>> from base64 import b64decode
    >>> key = b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")  # of the specification
    >>> id = "msg_p5jXN8AQM9LWM0D4loKWxJek"
    >>> sign([key], id, "1614265330", b'{"test": 2432232314}')
    'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE='
    """
    content = f"{message_id}.{moment}.".encode() + body
    digests = (hmac.digest(secret, content, "sha256") for secret in secrets)
    return " ".join(f"v1,{b64encode(digest).decode()}" for digest in digests)


def text_of_secret(secret: bytes) -> str:
    """Return a secret as receivers expect it.

    >>> text_of_secret(b"0" * 24)
    'whsec_MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAw'
    """
    return SECRET_PREFIX + b64encode(secret).decode()


def event_document(delivery: StoredDelivery, address: str) -> dict[str, object]:
    """Return the body for programs: what happened to which job, and where to read more."""
    if delivery.event is None or delivery.happened_at is None:
        at, data = delivery.created_at, {"message": greeting(delivery)}
        return {"type": "test", "timestamp": at.isoformat(), "data": data}
    return {
        "type": delivery.kind,
        "timestamp": delivery.happened_at.isoformat(),
        "data": {
            "event": delivery.event,
            "job": delivery.job,
            "name": delivery.name,
            "project": delivery.project,
            "message": shorten(delivery.message or ""),
            "url": f"{address}/jobs/{delivery.job}",
            "api": f"{address}/v1/jobs/{delivery.job}",
        },
    }


def slack_text(delivery: StoredDelivery, address: str) -> str:
    """Return the text for a channel of Slack."""
    if delivery.event is None:
        return escape_for_slack(greeting(delivery))
    link = f"<{address}/jobs/{delivery.job}|{escape_for_slack(delivery.name or '')}>"
    return f"*{delivery.kind}* {link}: {escape_for_slack(shorten(delivery.message or ''))}"


def greeting(delivery: StoredDelivery) -> str:
    """Return what a test says."""
    return f"Scavenger can reach this webhook ({delivery.webhook})"


def escape_for_slack(text: str) -> str:
    """Escape what Slack would take for a link, a person or a channel.

    >>> escape_for_slack("<!channel> a & b")
    '&lt;!channel&gt; a &amp; b'
    """
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def shorten(text: str) -> str:
    """Cut a sentence that ends in the output of a script."""
    return text if len(text) <= MAX_TEXT_LENGTH else f"{text[: MAX_TEXT_LENGTH - 1]}…"
