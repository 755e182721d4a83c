"""Provider, the contract every cloud implements, and the words it uses.

Clouds are believed to be slow, forgetful and only eventually consistent; so a launch carries a key
chosen beforehand, and what exists is always read from the cloud, never remembered.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

LAUNCH_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


class InstanceState(StrEnum):
    """Where a machine is in its life; it never goes back."""

    PENDING = "pending"
    RUNNING = "running"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """One machine to start, and the command it runs.

    Attributes:
        launch_key: Chosen and stored before the first call: 1 to 63 letters, digits, ``-``, ``_``.
        job: Id of the job the machine works for.
        command: The user's training command, program first.
        environment: Variables of the machine, secrets among them; never to be logged.
        directory: Where the command starts; None for the home directory.
        price_per_hour: What the machine costs, in dollars per hour.
    """

    launch_key: str
    job: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    directory: str | None
    price_per_hour: float

    def __post_init__(self) -> None:
        if not LAUNCH_KEY.fullmatch(self.launch_key):
            raise ValueError(f"launch_key must match {LAUNCH_KEY.pattern}, got {self.launch_key!r}")
        if not self.command:
            raise ValueError("command is empty")
        if not (math.isfinite(self.price_per_hour) and self.price_per_hour >= 0):
            raise ValueError(f"price_per_hour must be 0 or more, got {self.price_per_hour}")


@dataclass(frozen=True, slots=True)
class Instance:
    """One machine as its cloud sees it.

    Attributes:
        provider_id: The cloud's name for it, never used again for another machine.
        launch_key: Key of the launch that made it.
        job: Id of the job it works for.
        state: Where it is in its life.
        price_per_hour: What it costs, in dollars per hour.
    """

    provider_id: str
    launch_key: str
    job: str
    state: InstanceState
    price_per_hour: float


class Provider(Protocol):
    """A place where machines come from.

    Every call may raise ``ProviderUnavailable``: nothing is known about what it did, so the next
    tick repeats it. All calls are safe to repeat and to run concurrently.
    """

    @property
    def name(self) -> str:
        """Name of the cloud, as people write it."""

    @property
    def pause(self) -> float:
        """Seconds a change of machines usually takes: their start, and the resize after it."""

    def launch(self, request: LaunchRequest) -> Instance:
        """Start a machine, or return the one this launch key already started.

        Raises:
            OutOfCapacity: No machine was started; wait, then repeat with the same key.
            LaunchRefused: The key's machine is gone, or the request can never succeed; give up.
        """

    def list(self) -> tuple[Instance, ...]:
        """Return every machine this installation ever launched and did not forget."""

    def terminate(self, provider_id: str) -> None:
        """End a machine; on return it is gone. One that is absent or gone already is a success."""

    def forget(self, provider_id: str) -> None:
        """Drop the record of a machine that is gone, once its key will never be launched again.

        Raises:
            ValueError: The machine is not gone.
        """
