"""ScaledSteps: learning rates that are multiplied inside the optimizer's step and nowhere else.

The script's schedulers read and write the rates it was written with, so a schedule and a change of
batch compose, and the momentum that PyTorch keeps is a sum of gradients, free of any rate, so it
needs no correction when the factor changes (Goyal et al., section 3).
"""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from worker_agent.strategies.step_hook import Function, with_closure


class ScaledSteps:
    """Multiplies the learning rate of every parameter group for the length of each step.

    Attributes:
        factor: What the rates are multiplied with from the next step on.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.factor = 1.0
        self._written: list[tuple[dict[str, Any], Any]] = []
        optimizer.register_step_pre_hook(self._begin)
        optimizer.register_step_post_hook(self._restore)

    def _begin(self, optimizer: Optimizer, arguments: Any, options: Any) -> Any:
        self._scale(optimizer)

        def around(closure: Function) -> Function:
            """A closure is a part of the script, which reads and writes its own rates."""

            def unscaled(*given: Any, **named: Any) -> Any:
                self._restore()
                result = closure(*given, **named)
                self._scale(optimizer)
                return result

            return unscaled

        return with_closure(arguments, options, around)

    def _scale(self, optimizer: Optimizer) -> None:
        self._restore()  # a step that raised has left its own behind
        if self.factor == 1.0:
            return
        self._written = [(group, group["lr"]) for group in optimizer.param_groups if "lr" in group]
        for group, written in self._written:
            group["lr"] = written * self.factor

    def _restore(self, *_: Any) -> None:
        for group, written in self._written:
            group["lr"] = written
        self._written = []
