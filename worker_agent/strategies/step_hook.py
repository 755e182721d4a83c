"""StepHook: what is to be done in an optimizer's step once its gradients are there.

Most scripts make their gradients and then call ``step()``. Some hand the step a closure that makes
them, as Lightning always does; it runs when all pre-hooks have. So a closure is handed on with what
is to be done behind it, and the order of all the rest is the script's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import LBFGS, Optimizer

from worker_agent.errors import OptimizerRefused

Function = Callable[..., Any]

REMEDY = (
    "take an optimizer that calls it once, such as torch.optim.AdamW, or leave the script with DDP "
    "as it is and start it with: scavenger agent run"
)


class StepHook:
    """Does something in every step of an optimizer, between its gradients and its first change.

    Several hooks of one optimizer act in the order in which they were made.

    Args:
        optimizer: Whose steps.
        act: Called with the optimizer.
    """

    def __init__(self, optimizer: Optimizer, act: Callable[[Optimizer], None]) -> None:
        self.act = act
        self.closure: Closure | None = None
        optimizer.register_step_pre_hook(self._begin)
        optimizer.register_step_post_hook(self._end)

    def _begin(self, optimizer: Optimizer, arguments: Any, options: Any) -> Any:
        self.closure = None
        changed = with_closure(arguments, options, lambda given: self._awaited(optimizer, given))
        if changed is None:
            self.act(optimizer)
        return changed

    def _awaited(self, optimizer: Optimizer, given: Function) -> Function:
        self.closure = Closure(given, lambda: self.act(optimizer))
        return self.closure

    def _end(self, optimizer: Optimizer, *_: Any) -> None:
        closure, self.closure = self.closure, None
        if closure is not None and not closure.is_called:
            raise OptimizerRefused(
                f"{name_of(optimizer)} was given a closure and has not called it, so its gradients "
                "were not averaged: make them before, and call step() without a closure"
            )


def with_closure(
    arguments: tuple[Any, ...], options: dict[str, Any], around: Callable[[Function], Function]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the arguments of a step with another closure; None if it has none.

    Args:
        arguments: Those by place, the optimizer first.
        options: Those by name.
        around: Returns what the optimizer is to call instead of the script's closure.
    """
    if callable(options.get("closure")):
        return arguments, {**options, "closure": around(options["closure"])}
    if len(arguments) > 1 and callable(arguments[1]):
        return (arguments[0], around(arguments[1]), *arguments[2:]), options
    return None


class Closure:
    """A closure of the script that is called once, and what follows it."""

    def __init__(self, closure: Function, then: Callable[[], None]) -> None:
        self.closure, self.then = closure, then
        self.is_called = False

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Make the gradients, and return what the script's closure returns.

        Raises:
            OptimizerRefused: It was called before in this step.
        """
        if self.is_called:
            raise OptimizerRefused(
                "the optimizer calls its closure several times in one step, of which the agent can "
                f"follow only one: {REMEDY}"
            )
        self.is_called = True
        result = self.closure(*arguments, **options)
        self.then()
        return result


def refuse_searches(optimizer: Optimizer) -> None:
    """Refuse an optimizer that looks at many places before it moves.

    Raises:
        OptimizerRefused: It calls its closure many times in one step.
    """
    if isinstance(optimizer, LBFGS):
        raise OptimizerRefused(
            f"{name_of(optimizer)} calls its closure many times in one step, of which the agent "
            f"can follow only one: {REMEDY}"
        )


def name_of(optimizer: Optimizer) -> str:
    """Return what an optimizer is called."""
    return type(optimizer).__qualname__
