"""`Stack`: how one worker computes a step, as a sum of parts such as ``bf16+fused``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

StackPartName = Literal["channels_last", "bf16", "fp16", "fused"]

PART_NAMES: Final[tuple[StackPartName, ...]] = get_args(StackPartName)
EAGER_NAME: Final = "eager"
# Of each of these a stack has one part at most.
_ALTERNATIVES = ({"bf16", "fp16"},)


@dataclass(frozen=True, slots=True)
class Stack:
    """A way of computing a step; without parts it is eager: the script as it is.

    Attributes:
        parts: Names, each at most once, in the order in which they are turned on.

    >>> str(Stack.parse("fused + bf16"))
    'bf16+fused'
    >>> str(Stack())
    'eager'
    """

    parts: tuple[StackPartName, ...] = ()

    def __post_init__(self) -> None:
        unknown = [part for part in self.parts if part not in PART_NAMES]
        if unknown:
            known = ", ".join([EAGER_NAME, *PART_NAMES])
            raise ValueError(f"no stack has a part {unknown[0]!r}: write a sum of {known}")
        for alternatives in _ALTERNATIVES:
            both = [part for part in PART_NAMES if part in alternatives and part in self.parts]
            if len(both) > 1:
                raise ValueError(f"a stack has one precision: choose {' or '.join(both)}")
        ordered = tuple(part for part in PART_NAMES if part in self.parts)
        object.__setattr__(self, "parts", ordered)

    @classmethod
    def parse(cls, text: str) -> Stack:
        """Read a sum of names, in any order.

        Raises:
            ValueError: A name is unknown, or two contradict each other.
        """
        names = [name.strip() for name in text.split("+")]
        return cls(()) if names == [EAGER_NAME] else cls(tuple(names))  # type: ignore[arg-type]

    def __str__(self) -> str:
        return "+".join(self.parts) or EAGER_NAME


EAGER = Stack()
