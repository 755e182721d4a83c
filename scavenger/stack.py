"""`Stack`: how one worker computes a step, as a sum of parts such as ``bf16+fused``.

The last part may be a layout, such as ``P=2 T=1 M=4``: how processes of the worker share the model.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Final, Literal, get_args

from annotated_types import Ge, Gt, Lt, MaxLen

from scavenger.layout import PLAIN, Layout
from scavenger.number_checks import require_above_zero

StackPartName = Literal["channels_last", "bf16", "fp16", "compiled", "compiled_whole", "fused"]

PART_NAMES: Final[tuple[StackPartName, ...]] = get_args(StackPartName)
EAGER_NAME: Final = "eager"
MAX_REFUSAL_LENGTH = 1000
StackText = Annotated[str, MaxLen(128)]
# Of each of these a stack has one part at most.
_ALTERNATIVES: Final[Mapping[str, frozenset[StackPartName]]] = {
    "one precision": frozenset({"bf16", "fp16"}),
    "one way to compile": frozenset({"compiled", "compiled_whole"}),
}


COMPILED_PARTS: Final = _ALTERNATIVES["one way to compile"]
REHEARSED_PARTS: Final = COMPILED_PARTS | _ALTERNATIVES["one precision"]


@dataclass(frozen=True, slots=True)
class Stack:
    """A way of computing a step; without parts it is eager: the script as it is.

    Attributes:
        parts: Names, each at most once, in the order in which they are turned on.
        layout: How the processes of the worker share the model.

    >>> str(Stack.parse("fused + bf16"))
    'bf16+fused'
    >>> str(Stack())
    'eager'
    >>> Stack.parse("P=2 T=1 M=4").layout.pipeline
    2
    """

    parts: tuple[StackPartName, ...] = ()
    layout: Layout = PLAIN

    def __post_init__(self) -> None:
        unknown = [part for part in self.parts if part not in PART_NAMES]
        if unknown:
            known = ", ".join([EAGER_NAME, *PART_NAMES])
            raise ValueError(
                f"no stack has a part {unknown[0]!r}: write a sum of {known}, or a layout such as "
                "P=2 T=1"
            )
        for what, alternatives in _ALTERNATIVES.items():
            both = [part for part in PART_NAMES if part in alternatives and part in self.parts]
            if len(both) > 1:
                raise ValueError(f"a stack has {what}: choose {' or '.join(both)}")
        ordered = tuple(part for part in PART_NAMES if part in self.parts)
        object.__setattr__(self, "parts", ordered)

    @classmethod
    def parse(cls, text: str) -> Stack:
        """Read a sum of names, in any order.

        Raises:
            ValueError: A name is unknown, or two contradict each other.
        """
        names = [name.strip() for name in text.split("+")]
        layout = Layout.parse(names.pop()) if names[-1].startswith("P=") else PLAIN
        if names == [EAGER_NAME]:
            names = []
        elif not names and layout.is_plain:
            raise ValueError(f"{text} is what {EAGER_NAME} means: write {EAGER_NAME}")
        return cls(tuple(names), layout)  # type: ignore[arg-type]

    def __str__(self) -> str:
        names: list[str] = [*self.parts, *([] if self.layout.is_plain else [str(self.layout)])]
        return "+".join(names) or EAGER_NAME

    @property
    def is_compiled(self) -> bool:
        """Whether some of the model is compiled."""
        return not COMPILED_PARTS.isdisjoint(self.parts)

    @property
    def keeps_precision(self) -> bool:
        """Whether it computes with as many bits as the script does."""
        return _ALTERNATIVES["one precision"].isdisjoint(self.parts)

    @property
    def is_rehearsed(self) -> bool:
        """Whether its gradients may differ from eager's, so that they are checked beforehand."""
        return not REHEARSED_PARTS.isdisjoint(self.parts)

    def without(self, left_out: Collection[StackPartName]) -> Stack:
        """Return the stack without some parts.

        >>> str(Stack.parse("bf16+compiled").without(COMPILED_PARTS))
        'bf16'
        """
        return Stack(tuple(part for part in self.parts if part not in left_out), self.layout)


EAGER = Stack()

Matrix = tuple[tuple[float, float], tuple[float, float]]
NOTHING_OPEN: Matrix = ((0.0, 0.0), (0.0, 0.0))


@dataclass(frozen=True, slots=True)
class StackFactors:
    """How much longer compute takes with a stack than with the one a law was fitted on.

    Attributes:
        compute_fixed: Factor on seconds that no batch size changes, α.
        compute_per_sample: Factor on seconds per sample, β.
        covariance: Covariance of the logarithms of both.
    """

    compute_fixed: float = 1.0
    compute_per_sample: float = 1.0
    covariance: Matrix = NOTHING_OPEN

    def __post_init__(self) -> None:
        require_above_zero(self, "compute_fixed", "compute_per_sample")

    def relative_to(self, other: StackFactors) -> StackFactors:
        """Return the factors as another stack sees them, of which nothing else is known."""
        return replace(
            self,
            compute_fixed=self.compute_fixed / other.compute_fixed,
            compute_per_sample=self.compute_per_sample / other.compute_per_sample,
        )


@dataclass(frozen=True, slots=True)
class StackOption:
    """A stack that a job may use, and with which batches.

    Attributes:
        name: The stack.
        memory_share: Memory that a sample takes, relative to the script as it is.
        most_global_batch: Largest batch in which its rounding is small beside the noise; infinite
            where its numbers are the script's, or nothing tells.
        setup_seconds: Seconds in which nothing is trained before the first iteration with it.
        switch_seconds: Seconds in which nothing is trained at each change between this stack and
            one with another layout: the processes of the workers start again.
        most_local_batch: Samples one worker can hold with it; infinite where nothing tells.
        expected: What it is expected to do to seconds of compute, relative to eager, before it was
            measured; None where nothing tells.
    """

    name: str = EAGER_NAME
    memory_share: float = 1.0
    most_global_batch: float = math.inf
    setup_seconds: float = 0.0
    switch_seconds: float = 0.0
    most_local_batch: float = math.inf
    expected: StackFactors | None = None

    def __post_init__(self) -> None:
        Stack.parse(self.name)
        if not 0 < self.memory_share < math.inf:
            raise ValueError(f"memory_share must be above 0 and finite, got {self.memory_share}")
        if not self.most_global_batch >= 1:
            raise ValueError(f"most_global_batch must be at least 1, got {self.most_global_batch}")
        if not self.most_local_batch >= 1:
            raise ValueError(f"most_local_batch must be at least 1, got {self.most_local_batch}")
        for what in ("setup_seconds", "switch_seconds"):
            if not 0 <= getattr(self, what) < math.inf:
                raise ValueError(
                    f"{what} must be finite and not negative, got {getattr(self, what)}"
                )

    @property
    def layout(self) -> Layout:
        """How the processes of each worker share the model."""
        return Stack.parse(self.name).layout


EAGER_OPTION = StackOption()

# Seconds until a stack can be trained with, as long as none was rehearsed.
USUAL_COMPILE_SECONDS, USUAL_SETUP_SECONDS = 60.0, 2.0
# Rounding may add this share of the variance that the gradient of a batch has anyway.
MAX_ROUNDING_SHARE = 0.1


def usual_setup_seconds(stack: Stack) -> float:
    """Return the seconds that a stack usually takes until it can be trained with."""
    if stack.is_compiled:
        return USUAL_COMPILE_SECONDS
    return USUAL_SETUP_SECONDS if stack.parts else 0.0


@dataclass(frozen=True, slots=True)
class StackCheck:
    """What a worker found out about a stack in a rehearsal.

    Attributes:
        stack: The stack.
        local_batch: Samples of the batch that it was rehearsed with.
        seconds: What the rehearsal took, with compiling.
        gradient_error: Distance of all gradients from those in float64, relative to their length.
        refusal: Why this worker trains without a part of it; empty where all is right.
        cache_trouble: Why compiled code of other workers was not used, or this one's not shared;
            empty where all is right.
        memory_share: Bytes that a forward pass keeps for its backward pass, relative to what it
            keeps with the script as it is.
    """

    stack: StackText
    local_batch: Annotated[int, Ge(0)]
    seconds: Annotated[float, Ge(0)]
    gradient_error: Annotated[float, Ge(0)]
    refusal: Annotated[str, MaxLen(MAX_REFUSAL_LENGTH)] = ""
    cache_trouble: Annotated[str, MaxLen(MAX_REFUSAL_LENGTH)] = ""
    memory_share: Annotated[float, Gt(0), Lt(math.inf)] = 1.0


def refused_layouts(checks: Sequence[StackCheck]) -> Mapping[Layout, str]:
    """Return the layouts that a job which searches them does without, and why."""
    found: dict[Layout, str] = {}
    for check in checks:
        with suppress(ValueError):  # a worker may say any name
            if check.refusal:
                found[Stack.parse(check.stack).layout] = check.refusal
    return found


def measured_option(
    name: str, checks: Sequence[StackCheck], noise_scale: float | None
) -> StackOption | None:
    """Return how a job may use a stack by what its workers found out; None if it may not.

    Args:
        name: The stack.
        checks: What was found out about it.
        noise_scale: φ of the job in samples; None while unknown.
    """
    if any(check.refusal for check in checks):
        return None
    seconds = max((check.seconds for check in checks), default=None)
    error = max((check.gradient_error for check in checks), default=0.0)
    is_short = not Stack.parse(name).keeps_precision
    most = math.inf
    if is_short and noise_scale is not None and error > 0:
        most = max(MAX_ROUNDING_SHARE * noise_scale / error**2, 1.0)
    return StackOption(
        name,
        memory_share=max((check.memory_share for check in checks), default=1.0),
        most_global_batch=most,
        setup_seconds=usual_setup_seconds(Stack.parse(name)) if seconds is None else seconds,
    )


# Stacks that a job tries where it leaves the choice to us, those with the script's precision first.
AUTOMATIC_STACKS = ("eager", "fused", "channels_last+fused", "compiled+fused")
AUTOMATIC_SHORT_STACKS = ("bf16+fused", "channels_last+bf16+fused", "bf16+compiled+fused")
