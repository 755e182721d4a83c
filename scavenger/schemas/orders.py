"""Schemas of orders: what a user asks of a running job, and what became of it.

A wish is stored as it was sent, with the stack that it meant, and read back by the same model. A
request is a wish with a reason.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    model_validator,
)

from scavenger.cluster import ClusterConfig
from scavenger.job.fields import DollarAmount, Duration, SpecModel, require_nonzero, require_value
from scavenger.job.limits import BatchSize, WorkerCount
from scavenger.job.messages import show_value
from scavenger.job.spec import JobSpec, ObjectiveField
from scavenger.schemas.base import View
from scavenger.stack import EAGER_NAME, Stack

OrderKind = Literal["resize", "probe", "pause", "resume", "change"]


OrderState = Literal["open", "done", "refused", "replaced"]


Preference = Literal["auto", "knee", "cheapest", "fastest"]


PREFERENCES: tuple[Preference, ...] = ("knee", "cheapest", "fastest", "auto")


MAX_REASON = 500


def check_stack(text: str) -> str:
    """Return the name of a stack as it is written everywhere."""
    return str(Stack.parse(text))


class GridPoint(SpecModel):
    """A configuration by its workers, its global batch in samples, and the stack of each worker.

    Attributes:
        stack: The stack; None, in an order, for the one that the job has.
    """

    workers: WorkerCount
    global_batch: BatchSize
    stack: Annotated[str, AfterValidator(check_stack)] | None = Field(
        None, exclude_if=lambda name: name is None
    )

    @property
    def config(self) -> ClusterConfig:
        """The configuration.

        Raises:
            ValueError: There are more workers than samples.
        """
        return ClusterConfig(self.workers, self.global_batch, stack=self.stack or EAGER_NAME)

    def or_stack(self, stack: str) -> Self:
        """Return the point with a stack where it names none."""
        is_plain = self.stack is not None or stack == EAGER_NAME
        return self if is_plain else self.model_copy(update={"stack": stack})


def _read_target(value: object) -> Preference | GridPoint:
    if isinstance(value, GridPoint):
        return value
    if isinstance(value, dict):
        return GridPoint.model_validate(value)
    named = next((name for name in PREFERENCES if name == value), None)
    if named is None:
        raise ValueError(
            f"must be {', '.join(PREFERENCES)} or e.g. {{workers: 2, global_batch: 64}}, "
            f"got {show_value(value)}"
        )
    return named


ResizeTarget = Annotated[
    Preference | GridPoint,
    PlainValidator(_read_target, json_schema_input_type=Preference | GridPoint),
    PlainSerializer(
        lambda to: to if isinstance(to, str) else to.model_dump(),
        return_type=str | dict[str, int | str],
        when_used="json",
    ),
]


class ResizeWish(SpecModel):
    """Train on another configuration.

    Attributes:
        to: A configuration, which the job keeps; an objective to choose by from now on; or
            ``auto``, the job's own objective, which is planned anew when the noise drifts.
    """

    to: ResizeTarget


class ProbeWish(GridPoint):
    """Measure one configuration, then go back."""


class PauseWish(SpecModel):
    """Save a checkpoint, end all machines, and launch none."""


class ResumeWish(SpecModel):
    """Launch machines again, and go on from the checkpoint."""


class LimitsChange(SpecModel):
    """Limits to replace; one that is left out stays, and null removes one.

    Attributes:
        max_cost: The most the job may spend.
        max_time: The longest the job may take.
    """

    max_cost: Annotated[DollarAmount, AfterValidator(require_nonzero)] | None = None
    max_time: Duration | None = None


class ChangeWish(SpecModel):
    """Change limits or objective of a job.

    Attributes:
        limits: What to replace of its limits.
        objective: Which configuration to train on from now on.
    """

    limits: LimitsChange = LimitsChange()
    objective: Annotated[ObjectiveField | None, BeforeValidator(require_value)] = None

    @model_validator(mode="after")
    def _changes_something(self) -> ChangeWish:
        if not self.subjects:
            raise ValueError(
                'nothing is to be changed: write e.g. {"limits": {"max_cost": "5 USD"}}'
            )
        return self

    @property
    def subjects(self) -> frozenset[str]:
        """Names of what is replaced."""
        own = {"objective"} if self.objective is not None else set()
        return frozenset(self.limits.model_fields_set | own)

    def apply_to(self, spec: JobSpec) -> JobSpec:
        """Return a job with this changed."""
        given = {name: getattr(self.limits, name) for name in self.limits.model_fields_set}
        changed: dict[str, Any] = {"limits": spec.limits.model_copy(update=given)}
        if self.objective is not None:
            changed["objective"] = self.objective
        return spec.model_copy(update=changed)


Wish = ResizeWish | ProbeWish | PauseWish | ResumeWish | ChangeWish


WISHES: dict[OrderKind, type[Wish]] = {
    "resize": ResizeWish,
    "probe": ProbeWish,
    "pause": PauseWish,
    "resume": ResumeWish,
    "change": ChangeWish,
}


def _check_reason(reason: str) -> str:
    if not reason.isprintable():
        raise ValueError("must be one line of text")
    return reason


Reason = Annotated[
    str,
    Field(max_length=MAX_REASON, description="Why, for those who read it later"),
    AfterValidator(_check_reason),
]


class ResizeRequest(ResizeWish):
    """A resize, with its reason."""

    reason: Reason = ""


class ProbeRequest(ProbeWish):
    """A probe, with its reason."""

    reason: Reason = ""


class PauseRequest(PauseWish):
    """A pause, with its reason."""

    reason: Reason = ""


class ResumeRequest(ResumeWish):
    """A resumption, with its reason."""

    reason: Reason = ""


class ChangeRequest(ChangeWish):
    """A change of limits or objective, with its reason."""

    reason: Reason = ""


class OrderView(View):
    """One order.

    Attributes:
        number: Counts the orders of a job from 1.
        wish: What is asked for; amounts and durations are written as in a job document.
        by: Id of the token of who asked.
        state: ``open`` until the controller has obeyed it; ``refused`` where it cannot be obeyed
            any more; ``replaced`` where a later one came first.
        told: What became of it, in one sentence; empty while it is open.
    """

    number: int
    job: str
    kind: OrderKind
    wish: dict[str, Any]
    reason: str
    by: str
    at: datetime
    state: OrderState
    told: str
    ended_at: datetime | None


class OrderList(View):
    """One page of the orders of a job, newest first."""

    orders: list[OrderView]
    next_cursor: str | None
