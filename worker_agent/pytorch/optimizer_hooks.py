"""Hooks into the script's optimizer and model: before a step, learning rates, loss scaling.

Most scripts compute their gradients and then call ``step()``. Some pass the step a closure that
computes them, as Lightning always does; it runs after all pre-hooks. So a closure is wrapped,
with the action behind it, and the order of everything else is the script's.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, SGD, Optimizer

from worker_agent.errors import UnsupportedOptimizer

ClosureFunction = Callable[..., Any]

CLOSURE_REMEDY = (
    "take an optimizer that calls it once, such as torch.optim.AdamW, or leave the script with DDP "
    "as it is and start it with: scavenger agent run"
)


class StepHook:
    """Calls a function in every step of an optimizer, after its gradients and before its update.

    Several hooks of one optimizer run in the order of their creation.

    Args:
        optimizer: The optimizer.
        act: Called with the optimizer.
    """

    def __init__(self, optimizer: Optimizer, act: Callable[[Optimizer], None]) -> None:
        self.act = act
        self.closure: TrackedClosure | None = None
        optimizer.register_step_pre_hook(self._begin)
        optimizer.register_step_post_hook(self._end)

    def _begin(self, optimizer: Optimizer, arguments: Any, options: Any) -> Any:
        self.closure = None
        changed = with_closure(arguments, options, lambda given: self._awaited(optimizer, given))
        if changed is None:
            self.act(optimizer)
        return changed

    def _awaited(self, optimizer: Optimizer, given: ClosureFunction) -> ClosureFunction:
        self.closure = TrackedClosure(given, lambda: self.act(optimizer))
        return self.closure

    def _end(self, optimizer: Optimizer, *_: Any) -> None:
        closure, self.closure = self.closure, None
        if closure is not None and not closure.is_called:
            raise UnsupportedOptimizer(
                f"{optimizer_name(optimizer)} was given a closure and has not called it, so its "
                "gradients were not averaged: make them before, and call step() without a closure"
            )


def with_closure(
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    around: Callable[[ClosureFunction], ClosureFunction],
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the arguments of a step with another closure; None if it has no closure.

    Args:
        arguments: Positional arguments, the optimizer first.
        options: Keyword arguments.
        around: Returns the function that replaces the script's closure.
    """
    if callable(options.get("closure")):
        return arguments, {**options, "closure": around(options["closure"])}
    if len(arguments) > 1 and callable(arguments[1]):
        return (arguments[0], around(arguments[1]), *arguments[2:]), options
    return None


class TrackedClosure:
    """A closure of the script that is called once, and what follows it."""

    def __init__(self, closure: ClosureFunction, then: Callable[[], None]) -> None:
        self.closure, self.then = closure, then
        self.is_called = False

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Compute the gradients, and return the result of the script's closure.

        Raises:
            UnsupportedOptimizer: It was called before in this step.
        """
        if self.is_called:
            raise UnsupportedOptimizer(
                "the optimizer calls its closure several times in one step, of which the agent can "
                f"follow only one: {CLOSURE_REMEDY}"
            )
        self.is_called = True
        result = self.closure(*arguments, **options)
        self.then()
        return result


def refuse_line_search(optimizer: Optimizer) -> None:
    """Refuse an optimizer that evaluates its closure many times per step.

    Raises:
        UnsupportedOptimizer: It calls its closure many times in one step.
    """
    if isinstance(optimizer, LBFGS):
        raise UnsupportedOptimizer(
            f"{optimizer_name(optimizer)} calls its closure many times in one step, of which the "
            f"agent can follow only one: {CLOSURE_REMEDY}"
        )


def optimizer_name(optimizer: Optimizer) -> str:
    """Return the class name of an optimizer."""
    return type(optimizer).__qualname__


class PicklableForwardHook:
    """A hook around the forward pass of a module, which a copy of the module does not have.

    Args:
        listener: Called with what the module's hooks are called with; what it returns counts.
    """

    def __init__(self, listener: Callable[..., Any]) -> None:
        self.listener = listener

    def __call__(self, *arguments: Any) -> Any:
        return self.listener(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as a function of the standard library that does nothing.

        A script may copy or save the module, and a program that loads the file may not have this
        package.
        """
        return getattr, (nullcontext(), "__exit__")


class LearningRateScaler:
    """Multiplies the learning rate of every parameter group for the length of each step.

    Attributes:
        factor: Factor of the rates from the next step on.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.factor = 1.0
        self._written: list[tuple[dict[str, Any], Any]] = []
        optimizer.register_step_pre_hook(self._begin)
        optimizer.register_step_post_hook(self._restore)

    def _begin(self, optimizer: Optimizer, arguments: Any, options: Any) -> Any:
        self._scale(optimizer)

        def around(closure: ClosureFunction) -> ClosureFunction:
            """Run the closure, which is part of the script, with the script's own rates."""

            def unscaled(*given: Any, **named: Any) -> Any:
                self._restore()
                result = closure(*given, **named)
                self._scale(optimizer)
                return result

            return unscaled

        return with_closure(arguments, options, around)

    def _scale(self, optimizer: Optimizer) -> None:
        self._restore()  # after a step that raised
        if self.factor == 1.0:
            return
        self._written = [(group, group["lr"]) for group in optimizer.param_groups if "lr" in group]
        for group, written in self._written:
            group["lr"] = written * self.factor

    def _restore(self, *_: Any) -> None:
        for group, written in self._written:
            group["lr"] = written
        self._written = []


class FusedMomentumFix:
    """Initialises the momentum of a fused SGD before a first step that a loss scaler may skip.

    PyTorch does not clear the memory of its buffers. The kernel fills them in its first step; a
    loss scaler that has found an infinite gradient keeps it from that, and later steps read
    garbage. With its usual scale of 65 536 a scaler skips just that first step.

    A zero buffer is as good as none: the first step computes momentum · 0 + gradient. Dampening
    would shrink that gradient, so in that case the host reads whether the step is skipped, as the
    scaler itself does for kernels that are not fused.

    Args:
        optimizer: Any optimizer; only a fused SGD with PyTorch's own step is changed.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.put_aside: list[tuple[Tensor, Tensor]] = []
        if type(optimizer).step is SGD.step:
            StepHook(optimizer, self._before)
            optimizer.register_step_post_hook(self._restore)

    def _before(self, optimizer: Optimizer) -> None:
        self._restore()  # after a step that raised
        found_inf: Tensor | None = getattr(optimizer, "found_inf", None)
        if found_inf is None:
            return
        for group in optimizer.param_groups:
            fresh = parameters_without_momentum(optimizer, group)
            if not fresh:
                continue
            if not group["dampening"]:
                for parameter in fresh:
                    optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
            elif found_inf.item():
                self._skip(group["params"])

    def _skip(self, parameters: list[Tensor]) -> None:
        """Remove the gradients of these parameters during the step: no gradient, no step."""
        for parameter in parameters:
            if parameter.grad is not None:
                self.put_aside.append((parameter, parameter.grad))
                parameter.grad = None

    def _restore(self, *_: Any) -> None:
        for parameter, gradient in self.put_aside:
            parameter.grad = gradient
        self.put_aside = []


def parameters_without_momentum(optimizer: Optimizer, group: dict[str, Any]) -> list[Tensor]:
    """Return the parameters of a group whose momentum this step would create."""
    if not group["fused"] or not group["momentum"]:
        return []
    return [
        parameter
        for parameter in group["params"]
        if parameter.grad is not None
        and optimizer.state.get(parameter, {}).get("momentum_buffer") is None
    ]


def is_step_skipped(optimizer: Optimizer) -> bool:
    """Whether the running step must do nothing; reads the answer on the host.

    ``GradScaler`` passes ``found_inf`` and ``grad_scale`` to an optimizer with
    ``_step_supports_amp_scaling`` as attributes, for the length of the step.
    """
    found_inf: Tensor | None = getattr(optimizer, "found_inf", None)
    return found_inf is not None and bool(found_inf.item())


def unscale(optimizer: Optimizer, gradients: list[Tensor]) -> list[Tensor]:
    """Return the gradients of the running step without their scale."""
    scale: Tensor | None = getattr(optimizer, "grad_scale", None)
    if scale is None:
        return gradients
    return [gradient / scale.to(gradient.device) for gradient in gradients]
