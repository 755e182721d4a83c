"""`WholeModelSteps`: ``job.step`` and ``job.predict`` of a process that has the whole model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class WholeModelSteps:
    """Forward and backward passes of the whole model; implements ``frameworks.ModelSteps``.

    Args:
        model: The script's model.
        loss: Mean loss over a batch, from outputs and targets.
        scaler: The script's ``GradScaler``, if any.
    """

    def __init__(
        self, model: nn.Module, loss: Callable[[Any, Any], Tensor], scaler: Any = None
    ) -> None:
        self.model, self.loss, self.scaler = model, loss, scaler
        self.staleness = None

    def step(self, inputs: Any, targets: Any) -> Tensor:
        """Return the batch's loss, after its backward pass."""
        loss = self.loss(self.model(inputs), targets)
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        return loss.detach()

    def predict(self, inputs: Any) -> Any:
        """Return the model's outputs, without gradients."""
        with torch.no_grad():
            return self.model(inputs)
