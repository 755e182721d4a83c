"""`StackSwitch`: changes the stack of a script between two iterations; the registry of parts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer

from scavenger.stack import EAGER, Stack, StackPartName

log = logging.getLogger(__name__)


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
    "compiled": "worker_agent.pytorch.stacks.compiled:CompiledBlocks",
    "compiled_whole": "worker_agent.pytorch.stacks.compiled:CompiledWhole",
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
        self.parts: dict[StackPartName, StackPart] = {}

    def refusals(self, stack: Stack) -> Mapping[StackPartName, str]:
        """Say of each part that this script cannot run with why, in a sentence."""
        said = {name: self._refusal_of(name) for name in stack.parts}
        return {name: why for name, why in said.items() if why is not None}

    def _refusal_of(self, name: StackPartName) -> str | None:
        try:
            return self._part(name).refusal(self.script)
        except Exception as error:  # it would reach the script
            log.debug("the part %s cannot say whether it can be used", name, exc_info=True)
            return f"it fails: {type(error).__name__}: {error}"

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
                part = self._part(name)
                part.turn_on(self.script)
                self.on.append(part)
        except Exception:
            self._turn_off(0)
            self.stack = EAGER
            raise
        self.stack = stack

    def _part(self, name: StackPartName) -> StackPart:
        """Return a part, the same one each time: it may have learned what this script needs."""
        if name not in self.parts:
            self.parts[name] = resolve_name(PARTS[name])()
        return self.parts[name]

    def _turn_off(self, kept: int) -> None:
        while len(self.on) > kept:
            self.on.pop().turn_off(self.script)
