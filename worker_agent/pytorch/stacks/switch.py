"""`StackSwitch`: changes the stack of a script between two iterations; the registry of parts."""

from __future__ import annotations

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer

from scavenger.stack import EAGER, Stack, StackPartName


@dataclass(frozen=True, slots=True)
class PreparedScript:
    """What a script has passed to ``job.prepare``.

    Attributes:
        model: Its model.
        optimizer: Its optimizer.
        scaler: Its ``torch.amp.GradScaler``; None without one.
    """

    model: nn.Module
    optimizer: Optimizer
    scaler: Any = None


class StackPart(Protocol):
    """One part of a stack; an instance serves one script."""

    @property
    def name(self) -> str:
        """Its name in job documents."""

    def refusal(self, script: PreparedScript) -> str | None:
        """Say in a sentence why this script cannot run so; None if it can."""

    def turn_on(self, script: PreparedScript) -> None:
        """Change the script's objects, between two iterations."""

    def turn_off(self, script: PreparedScript) -> None:
        """Change them back to what they were."""


# One line for each part, loaded when a stack has it.
PARTS: dict[StackPartName, str] = {
    "channels_last": "worker_agent.pytorch.stacks.channels_last:ChannelsLast",
    "bf16": "worker_agent.pytorch.stacks.autocast:BFloat16",
    "fp16": "worker_agent.pytorch.stacks.autocast:Float16",
    "fused": "worker_agent.pytorch.stacks.fused:FusedStep",
}


class StackSwitch:
    """Turns parts on and off in a script.

    Attributes:
        stack: The stack that is on.

    Args:
        script: What the script has prepared.
    """

    def __init__(self, script: PreparedScript) -> None:
        self.script, self.stack = script, EAGER
        self.on: list[StackPart] = []

    def refusal(self, stack: Stack) -> str | None:
        """Say in a sentence why this script cannot run with a stack; None if it can."""
        said = (load_part(name).refusal(self.script) for name in stack.parts)
        return next((why for why in said if why is not None), None)

    def change(self, stack: Stack) -> None:
        """Change to a stack that is not refused, between two iterations.

        Parts that both stacks begin with stay on. Should a part fail, the ones that were turned on
        are turned off again and the script is eager.
        """
        kept = 0
        for before, after in zip(self.stack.parts, stack.parts, strict=False):
            if before != after:
                break
            kept += 1
        self._turn_off(kept)
        try:
            for name in stack.parts[kept:]:
                part = load_part(name)
                part.turn_on(self.script)
                self.on.append(part)
        except Exception:
            self._turn_off(0)
            self.stack = EAGER
            raise
        self.stack = stack

    def _turn_off(self, kept: int) -> None:
        while len(self.on) > kept:
            self.on.pop().turn_off(self.script)


def load_part(name: StackPartName) -> StackPart:
    """Return a new part by its name."""
    part: Any = resolve_name(PARTS[name])
    loaded: StackPart = part()
    return loaded
