"""Faults: what is to go wrong, programmed beforehand, and what did.

Some befall a request or its answer on their way, others what the cloud itself does; a call may
meet one of each.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Annotated, Literal

from pydantic import Field

from tests.fakecloud.machine import Reason

Operation = Literal["launch", "list", "describe", "terminate"]


@dataclass(frozen=True, slots=True)
class LostRequest:
    """The connection is reset before the cloud has heard anything."""

    kind: Literal["LostRequest"] = "LostRequest"


@dataclass(frozen=True, slots=True)
class LateRequest:
    """The connection is reset, and the cloud does what was asked so many seconds later."""

    after: float
    kind: Literal["LateRequest"] = "LateRequest"


@dataclass(frozen=True, slots=True)
class LostResponse:
    """The cloud does what was asked, then the connection is reset."""

    kind: Literal["LostResponse"] = "LostResponse"


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The cloud does it, answers, and does it again so many seconds later.

    What it refused it does not do later: a client that makes one attempt per call sends no copy
    that could arrive after a refusal has been answered.
    """

    after: float = 0.0
    kind: Literal["Duplicate"] = "Duplicate"


@dataclass(frozen=True, slots=True)
class Garbage:
    """The cloud does it, but an error page takes the place of its answer."""

    kind: Literal["Garbage"] = "Garbage"


@dataclass(frozen=True, slots=True)
class Slow:
    """The cloud does it at once and answers so many seconds later."""

    seconds: float
    kind: Literal["Slow"] = "Slow"


@dataclass(frozen=True, slots=True)
class Refused:
    """The cloud does nothing and answers with an error."""

    code: str
    kind: Literal["Refused"] = "Refused"


@dataclass(frozen=True, slots=True)
class Ignored:
    """The cloud says yes to an end, and the machine goes on."""

    kind: Literal["Ignored"] = "Ignored"


@dataclass(frozen=True, slots=True)
class Partial:
    """No more than so many machines come, one at least."""

    count: int
    kind: Literal["Partial"] = "Partial"

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count must be 1 or more, got {self.count}")


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The machines that come are taken back after so many seconds.

    Attributes:
        after: Seconds from their launch until it is decided.
        notice: Seconds the machines know of it before; 0 for no notice.
        reason: What the cloud says of it.
    """

    after: float
    notice: float = 0.0
    reason: Reason = Reason.INTERRUPTED
    kind: Literal["Interrupted"] = "Interrupted"


@dataclass(frozen=True, slots=True)
class Omitted:
    """A list leaves a machine out that exists; None for all of them."""

    machine: str | None = None
    kind: Literal["Omitted"] = "Omitted"


OnTheWay = LostRequest | LateRequest | LostResponse | Duplicate | Garbage | Slow
InTheCloud = Refused | Ignored | Partial | Interrupted | Omitted
Fault = Annotated[OnTheWay | InTheCloud, Field(discriminator="kind")]

POSSIBLE: Mapping[Operation, tuple[type[InTheCloud], ...]] = {
    "launch": (Refused, Partial, Interrupted),
    "list": (Refused, Omitted),
    "describe": (Refused,),
    "terminate": (Refused, Ignored),
}


@dataclass(slots=True)
class Rule:
    """A fault that was programmed.

    Attributes:
        about: The token or machine it is meant for; None for any.
        probability: That it strikes a call that it fits.
        left: How often it may still strike; None for ever.
    """

    operation: Operation
    fault: OnTheWay | InTheCloud
    about: str | None
    probability: float
    left: int | None
    fired: int = 0

    @property
    def name(self) -> str:
        """What was programmed, in two words."""
        return f"{self.operation} {self.fault.kind}"


@dataclass(slots=True)
class Faults:
    """Rules, tried in the order they were given, and a count of all that went wrong.

    Attributes:
        random: Decides what has a probability.
    """

    random: Random
    _rules: list[Rule] = field(default_factory=list)
    _counts: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def next(
        self, operation: Operation, fault: Fault, about: str | None = None, times: int = 1
    ) -> None:
        """Let the next call, or so many, meet a fault."""
        self._add(Rule(operation, fault, about, 1.0, times))

    def always(self, operation: Operation, fault: Fault, about: str | None = None) -> None:
        """Let every call meet a fault until ``calm``."""
        self._add(Rule(operation, fault, about, 1.0, None))

    def sometimes(self, operation: Operation, fault: Fault, probability: float) -> None:
        """Let calls meet a fault at random until ``calm``."""
        if not 0 < probability <= 1:
            raise ValueError(f"probability must be above 0 and at most 1, got {probability}")
        self._add(Rule(operation, fault, None, probability, None))

    @contextmanager
    def meanwhile(self, operation: Operation, fault: Fault) -> Iterator[None]:
        """Let the calls that are made meanwhile meet a fault, but none after them."""
        rule = Rule(operation, fault, None, 1.0, None)
        self._add(rule)
        try:
            yield
        finally:
            with self._lock:
                rule.left = 0

    def calm(self) -> None:
        """Let nothing more go wrong; what was programmed is still known to ``unfired``."""
        with self._lock:
            for rule in self._rules:
                rule.left = 0

    def on_the_way(self, operation: Operation, about: str | None) -> OnTheWay | None:
        """Return what befalls a call or its answer; it counts as fired."""
        fault = self._draw(operation, about, is_on_the_way=True)
        return fault if isinstance(fault, OnTheWay) else None

    def in_the_cloud(self, operation: Operation, about: str | None) -> InTheCloud | None:
        """Return what befalls the cloud as it obeys; it counts as fired."""
        fault = self._draw(operation, about, is_on_the_way=False)
        return fault if isinstance(fault, InTheCloud) else None

    def count(self, name: str) -> None:
        """Note a failure that was not programmed here."""
        with self._lock:
            self._counts[name] += 1

    def counts(self) -> Mapping[str, int]:
        """Return how often what went wrong, by name."""
        with self._lock:
            return dict(self._counts)

    def unfired(self) -> tuple[str, ...]:
        """Return the names of what was programmed and never struck; a test that sees any failed."""
        with self._lock:
            return tuple(rule.name for rule in self._rules if not rule.fired)

    def _add(self, rule: Rule) -> None:
        if isinstance(rule.fault, InTheCloud) and not isinstance(
            rule.fault, POSSIBLE[rule.operation]
        ):
            raise ValueError(f"a {rule.operation} can never meet {rule.fault.kind}")
        with self._lock:
            self._rules.append(rule)

    def _draw(
        self, operation: Operation, about: str | None, *, is_on_the_way: bool
    ) -> OnTheWay | InTheCloud | None:
        with self._lock:
            for rule in self._rules:
                fits = rule.operation == operation and rule.about in (None, about)
                if not fits or isinstance(rule.fault, OnTheWay) is not is_on_the_way:
                    continue
                if rule.left != 0 and self.random.random() < rule.probability:
                    return self._fire(rule)
        return None

    def _fire(self, rule: Rule) -> OnTheWay | InTheCloud:
        rule.fired += 1
        rule.left = None if rule.left is None else rule.left - 1
        self._counts[rule.fault.kind] += 1
        return rule.fault
