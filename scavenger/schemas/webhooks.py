"""Schemas of webhooks: where the controller reports events of jobs to, and what became of it."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from scavenger.schemas.base import View


class EventKind(StrEnum):
    """Kind of an event, as ``GET /v1/jobs/{job}/events`` shows it; ``*`` stands for all."""

    EVERY = "*"
    SUBMITTED = "submitted"
    ORDER = "order"
    CANCEL = "cancel"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    CAPPED = "capped"
    BUDGET = "budget"
    FRAMEWORK = "framework"
    CHOICE = "choice"
    ADVICE = "advice"
    PROBE = "probe"
    RESIZE = "resize"
    REGROUPED = "regrouped"
    DRIFT = "drift"
    DEGRADED = "degraded"
    WAITING = "waiting"
    RESUMED = "resumed"
    NOT_FINITE = "not_finite"
    STACK_REFUSED = "stack_refused"
    CACHE_UNUSABLE = "cache_unusable"
    LAYOUTS = "layouts"
    HELLO = "hello"
    EXIT = "exit"
    RESTART = "restart"
    LAUNCH = "launch"
    LAUNCH_DELAYED = "launch_delayed"
    LAUNCH_REFUSED = "launch_refused"
    VM_LAUNCHED = "vm_launched"
    VM_GONE = "vm_gone"
    TERMINATE = "terminate"
    UNDELETABLE = "undeletable"
    INTERRUPTION_NOTICE = "interruption_notice"
    SWEEP = "sweep"
    ENROLMENT_REFUSED = "enrolment_refused"
    SECRET_MISSING = "secret_missing"  # noqa: S105 - the name of an event
    CHECKPOINTS = "checkpoints"
    CHECKPOINT_TROUBLE = "checkpoint_trouble"
    ROWS_DROPPED = "rows_dropped"
    ROWS_LOST = "rows_lost"
    ROWS_REJECTED = "rows_rejected"


# What a person who is not watching wants to hear: jobs that end, diverge, or cost much or for ever.
NOTABLE_EVENTS = (
    EventKind.SUCCEEDED,
    EventKind.FAILED,
    EventKind.CANCELLED,
    EventKind.CAPPED,
    EventKind.BUDGET,
    EventKind.NOT_FINITE,
    EventKind.UNDELETABLE,
)


class WebhookKind(StrEnum):
    """What a receiver understands."""

    #: A signed document, by the Standard Webhooks specification.
    GENERIC = "generic"
    #: The text of an incoming webhook of Slack.
    SLACK = "slack"


class WebhookView(View):
    """A webhook.

    Attributes:
        id: ``whk_`` and 16 hexadecimal digits.
        events: Kinds of the events that are sent.
        project: Whose jobs they are about; ``*`` for every project.
        is_enabled: Whether events are sent now.
        disabled_why: Why they are not; None while they are.
        rotations: How often its secret was replaced.
        secret: What signs the requests; only in the answers to creation and rotation, and None for
            Slack, which checks no signature.
    """

    id: str
    url: str
    kind: WebhookKind
    events: list[EventKind]
    project: str
    is_enabled: bool
    created_at: datetime
    disabled_why: str | None = None
    rotations: int = 0
    secret: str | None = None


class WebhookList(View):
    """One page of webhooks, newest first."""

    webhooks: list[WebhookView]
    next_cursor: str | None = None


class DeliveryState(StrEnum):
    """State of a delivery."""

    #: It is tried, or tried again, at ``next_try_at``.
    WAITING = "waiting"
    #: The receiver answered with a status of 2xx.
    DELIVERED = "delivered"
    #: It is not tried any more; it can be replayed.
    FAILED = "failed"


class DeliveryView(View):
    """One event on its way to one webhook.

    Attributes:
        number: Counts the deliveries of all webhooks.
        message_id: The header ``webhook-id``: the same in every try and replay.
        event: Number of the event; None for a test.
        kind: Kind of the event; None for a test.
        job: Its job; None for a test.
        attempts: Requests that were begun.
        next_try_at: When the next one begins at the earliest; None once it is over.
        status: HTTP status of the last answer; None if there was none.
        told: What was wrong the last time, and what becomes of it; None if nothing was.
        replay_of: Number of the delivery that a person had sent again.
    """

    number: int
    webhook: str
    message_id: str
    event: int | None
    kind: str | None
    job: str | None
    state: DeliveryState
    attempts: int
    created_at: datetime
    next_try_at: datetime | None
    ended_at: datetime | None
    status: int | None
    told: str | None
    replay_of: int | None


class DeliveryList(View):
    """One page of the deliveries of a webhook, newest first."""

    deliveries: list[DeliveryView]
    next_cursor: str | None = None
