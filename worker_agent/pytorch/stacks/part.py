"""`StackPart`: one thing that a stack changes about how a worker computes a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer


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
