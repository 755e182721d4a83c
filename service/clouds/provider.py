"""Provider, the contract every cloud implements, and the words it uses.

Clouds are believed to be slow, forgetful and only eventually consistent; so a launch carries a key
chosen beforehand, and what exists is always read from the cloud, never remembered.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol, runtime_checkable

from scavenger.schemas.prices import PriceView
from scavenger.worker_env import WorkerEnv, check_controller_url
from service.offers import Offer, SeenPrice
from service.prices import PricedRegion

# What every cloud accepts: Google allows neither capitals nor dots, and its names have 63 letters,
# of which the provider's prefix takes four.
LAUNCH_KEY_PATTERN = re.compile(r"[a-z0-9][a-z0-9-]{0,58}")
LABEL_KEY_PATTERN = re.compile(r"[a-z][a-z0-9_-]{0,62}")
LABEL_PATTERN = re.compile(r"[a-z0-9_-]{1,63}")
MAX_LABELS = 16
ID_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,128}")
BOOTSTRAP_TOKEN_PATTERN = re.compile(r"[A-Za-z0-9_.-]{1,160}")
SHA256_PATTERN = re.compile(r"[0-9a-f]{64}")
MAX_PREPAID = 366 * 86400.0


class InstanceState(StrEnum):
    """Where a machine is in its life; it never goes back.

    A stopped machine runs nothing and is billed for its disk: it is to be ended.
    """

    PENDING = "pending"
    RUNNING = "running"
    ENDING = "ending"
    STOPPED = "stopped"
    GONE = "gone"


class EndReason(StrEnum):
    """Why a machine ended that was not told to, as far as its cloud says."""

    SOLD_OUT = "the cloud had no room for it"
    TAKEN = "the cloud took it back"
    FAILED = "it failed"


@dataclass(frozen=True, slots=True)
class Boot:
    """What a machine knows before it enrols; enrolment brings all that is the user's.

    Its size hardly varies, and every value is checked by a pattern: it fits into the smallest
    launch script and needs no quoting in any.

    Attributes:
        controller: URL of the controller.
        job: Id of the job.
        worker: Id of the worker, equal to the id of its machine.
        token: Bootstrap token, which is exchanged for a worker token once.
        prepaid: Seconds the machine may run before its first lease.
        agent: SHA-256 of the agent's package; None where no boot script installs one.
        ca: SHA-256 of the file with the controller's certificate authority; None where the machine
            trusts those of its system.
    """

    controller: str
    job: str
    worker: str
    token: str = field(repr=False)
    prepaid: float
    agent: str | None = None
    ca: str | None = None

    def __post_init__(self) -> None:
        check_controller_url(self.controller)
        for text in (self.job, self.worker):
            if not ID_PATTERN.fullmatch(text):
                raise ValueError(f"ids must match {ID_PATTERN.pattern}, got {text!r}")
        if not BOOTSTRAP_TOKEN_PATTERN.fullmatch(self.token):
            raise ValueError(f"token must match {BOOTSTRAP_TOKEN_PATTERN.pattern}")
        if not 0 < self.prepaid < MAX_PREPAID:
            raise ValueError(f"prepaid must be above 0 and below a year, got {self.prepaid}")
        for digest in (self.agent, self.ca):
            if digest is not None and not SHA256_PATTERN.fullmatch(digest):
                raise ValueError(f"hashes must match {SHA256_PATTERN.pattern}, got {digest!r}")

    @property
    def worker_env(self) -> WorkerEnv:
        """The same as variables; a provider adds what only it knows, with ``replace``."""
        return WorkerEnv(
            controller=self.controller,
            token=self.token,
            job=self.job,
            worker=self.worker,
            prepaid=self.prepaid,
        )

    @property
    def environment(self) -> Mapping[str, str]:
        """All variables of the machine, a secret among them; never to be logged."""
        return self.worker_env.to_env()


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """One machine to start, and what it knows when it boots.

    Attributes:
        launch_key: Chosen and stored before the first call: 1 to 59 lower-case letters, digits,
            ``-``.
        offer: Where it is rented, the same whenever the key is repeated.
        boot: What the machine is to know.
        labels: Written by the call that makes the machine, never afterwards; at most 16, keys and
            values 1 to 63 lower-case letters, digits, ``-``, ``_``; keys begin with a letter.
        max_run_seconds: After how many seconds the cloud itself ends the machine, where it can;
            infinite for never.
    """

    launch_key: str
    offer: Offer
    boot: Boot
    labels: Mapping[str, str] = field(default_factory=dict)
    max_run_seconds: float = math.inf

    def __post_init__(self) -> None:
        if not LAUNCH_KEY_PATTERN.fullmatch(self.launch_key):
            raise ValueError(
                f"launch_key must match {LAUNCH_KEY_PATTERN.pattern}, got {self.launch_key!r}"
            )
        if len(self.labels) > MAX_LABELS:
            raise ValueError(f"at most {MAX_LABELS} labels, got {len(self.labels)}")
        for key, value in self.labels.items():
            if not (LABEL_KEY_PATTERN.fullmatch(key) and LABEL_PATTERN.fullmatch(value)):
                raise ValueError(
                    f"labels must match {LABEL_KEY_PATTERN.pattern} and {LABEL_PATTERN.pattern}, "
                    f"got {key!r}: {value!r}"
                )
        if not self.max_run_seconds > 0:
            raise ValueError(f"max_run_seconds must be above 0, got {self.max_run_seconds}")

    @property
    def job(self) -> str:
        return self.boot.job


@dataclass(frozen=True, slots=True)
class Instance:
    """One machine as its cloud sees it.

    Attributes:
        provider_id: The cloud's own number for it, never used again for another machine; not a name
            that is free again once the machine is gone.
        launch_key: Key of the launch that made it.
        job: Id of the job it works for.
        state: Where it is in its life.
        zone: Where it is; empty where the cloud does not say.
        labels: What its launch wrote onto it.
        reason: Why it ended by itself; None while it has not, or where the cloud does not say.
    """

    provider_id: str
    launch_key: str
    job: str
    state: InstanceState
    zone: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    reason: EndReason | None = None


@dataclass(frozen=True, slots=True)
class CloudTraits:
    """What the controller must know of a cloud to plan and to pay.

    Attributes:
        zones: Where machines can be asked for, best first; all in one region.
        image: What machines boot, where a job names no image.
        machine_type: The type of jobs that name none; empty where they must.
        resize_seconds: What a change of machines usually takes: their start, and the resize after.
        max_list_lag_seconds: For how long a list may lag behind what was done. No existing machine
            is missing from all lists for longer than this.
        max_boot_seconds: Longest time from a call of ``launch`` to the start of the machine's own
            clock. How long the call itself may take is among them.
        list_interval_seconds: Least time between two lists: clouds refuse callers that list often.
        minimum_billed_seconds: What a machine is billed at least.
        is_rented: Whether machines are other computers, whose disks end with them.
        priced: Where prices of its machines are found, and what is billed beside each.
    """

    zones: tuple[str, ...] = ("",)
    image: str = ""
    machine_type: str = ""
    resize_seconds: float = 0.0
    max_list_lag_seconds: float = 0.0
    max_boot_seconds: float = 0.0
    list_interval_seconds: float = 0.0
    minimum_billed_seconds: float = 0.0
    is_rented: bool = False
    priced: PricedRegion = field(default_factory=PricedRegion)

    def __post_init__(self) -> None:
        if not self.zones:
            raise ValueError("a cloud needs a zone")


class Provider(Protocol):
    """A place where machines come from: one account of one cloud, in one region.

    Every call may raise ``ProviderUnavailable``: nothing is known about what it did, so the next
    tick repeats it; or ``Throttled``: nothing was done, and it is repeated later. All calls are
    safe to repeat and to run concurrently. None takes longer than a minute: a provider that calls
    over a network sets a time-out, and leaves repetitions to the controller.
    """

    @property
    def name(self) -> str:
        """Name of the entry in the clouds file."""

    @property
    def account(self) -> str:
        """Where its machines are: one of another account neither lists them nor ends them.

        Raises:
            CloudError: The cloud does not say now; the controller does not start.
        """

    @property
    def traits(self) -> CloudTraits:
        """What the controller must know of the cloud; never changes."""

    def launch(self, request: LaunchRequest) -> Instance:
        """Start a machine, or return the one this launch key already started.

        A key that was launched with other parameters returns what it started then. It always comes
        with the same offer. The first four errors are certain: this call started nothing.

        Raises:
            OutOfCapacity: The place has no such machine now; the key is given up.
            QuotaReached: The account may have no more in this region and market; the key is given
                up.
            CredentialsRefused: The controller may not launch; the key is given up.
            Throttled: The cloud wants to be asked more slowly; the key is repeated.
            LaunchRefused: The key's machine is ending or gone, or the request can never succeed;
                the key is given up.
        """

    def list(self) -> tuple[Instance, ...]:
        """Return every machine with this installation's labels that the cloud shows now.

        That may lag: a new machine may still be missing, one that was ended still be running. One
        that is gone may be shown for a while, then no longer.

        Raises:
            CloudError: Not all machines can be shown, if only of one zone: none count as missing.
        """

    def spot_prices(self, zone: str, machine_type: str, since: datetime) -> tuple[SeenPrice, ...]:
        """Return what a spot machine costs, from the price at a moment on, every change, in order.

        The last is the price now. None at all where the price does not move, or is not told.
        """

    def terminate(self, provider_id: str) -> None:
        """Order the end of a machine; on return the order was accepted.

        When it is gone, ``list`` tells. One that the cloud does not know, not yet or no longer, is
        a success too: that proves nothing.
        """

    def forget(self, provider_id: str) -> None:
        """Drop what is kept of a machine that is gone, once its key will never be launched again.

        Where the cloud keeps the record, it forgets by itself.

        Raises:
            ValueError: The machine is not gone.
        """


@runtime_checkable
class PriceSource(Protocol):
    """A provider that also says what its cloud asks for machines."""

    def fetch_prices(self, types: Collection[str], now: datetime) -> Iterator[PriceView]:
        """Yield what is known of the prices of these machine types; they are judged by the caller.

        The error of one question keeps the prices that were told before.

        Raises:
            CloudError: The cloud does not say now.
        """
