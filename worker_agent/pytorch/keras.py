"""Keras on PyTorch: its optimizers are none of PyTorch's, and their slots are variables of Keras.

Keras itself is never imported here: it is the script's, and slow to load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from worker_agent.launcher.patch import Patch
from worker_agent.launcher.step_timer import StepTimer


class KerasInstrumentation:
    """Instruments the optimizers of Keras: ``apply`` is their step.

    An optimizer that scales the loss steps another one, whose gradients are unscaled already, and
    does not if they are infinite.

    Args:
        timer: Told the scale of the loss.
        before_step: Called with the optimizer before it steps.
        after_step: Called with the optimizer once it has stepped.
        on_metrics: Takes the metrics of an epoch of ``fit``.
        on_resume: Called when the script loads an optimizer's state.
    """

    def __init__(
        self,
        timer: StepTimer,
        *,
        before_step: Callable[[Any], None],
        after_step: Callable[[Any], None],
        on_metrics: Callable[[Mapping[str, float]], None],
        on_resume: Callable[[], None],
    ) -> None:
        self.timer, self.before_step, self.after_step = timer, before_step, after_step
        self.on_metrics, self.on_resume = on_metrics, on_resume
        self.is_loaded = self.has_stepped = False
        self.scaling: Any = None

    def patches(self, trainer: Any) -> tuple[Patch, ...]:
        """Return the patches to apply once Keras has imported what ``fit`` needs.

        Args:
            trainer: ``keras.src.backend.torch.trainer``.
        """
        self.is_loaded = True
        untraced: Any = torch.compiler.disable  # in `fit` with jit_compile=True
        scaling = untraced(self._scaled_step_begins), untraced(self._scaled_step_ends)
        stepping = untraced(self._step_begins), untraced(self._step_ends)
        optimizers, callbacks = trainer.optimizers_module, trainer.callbacks_module
        return (
            Patch(optimizers.LossScaleOptimizer, "apply", *scaling),
            Patch(optimizers.Optimizer, "apply", *stepping),
            Patch(optimizers.Optimizer, "load_own_variables", before=self._state_is_loaded),
            Patch(callbacks.CallbackList, "on_epoch_end", after=self._epoch_ends),
        )

    def _state_is_loaded(self, *_: Any) -> None:
        self.on_resume()

    def _epoch_ends(self, _: Any, __: int, logs: Any = None) -> None:
        self.on_metrics({name: float(value) for name, value in (logs or {}).items()})

    def _scaled_step_begins(self, optimizer: Any, *_: Any) -> None:
        self.scaling, self.has_stepped = optimizer, False

    def _scaled_step_ends(self, optimizer: Any, *_: Any) -> None:
        self.scaling = None
        if self.has_stepped:
            self.after_step(optimizer)

    def _step_begins(self, optimizer: Any, *_: Any) -> None:
        scale, outermost = optimizer.loss_scale_factor, optimizer
        if self._is_scaled(optimizer):
            scale, outermost = self.scaling.dynamic_scale.value.detach().clone(), self.scaling
        if scale is not None:
            self.timer.current.loss_scale = torch.as_tensor(scale)
        self.before_step(outermost)

    def _step_ends(self, optimizer: Any, gradients: Any, *_: Any) -> None:
        period = optimizer.gradient_accumulation_steps or 1
        is_added_up = period > 1 and int(optimizer._iterations.value) % period != 0
        self.has_stepped = len(gradients) > 0 and not is_added_up
        if self.has_stepped and not self._is_scaled(optimizer):
            self.after_step(optimizer)

    def _is_scaled(self, optimizer: Any) -> bool:
        return self.scaling is not None and self.scaling.inner_optimizer is optimizer


class KerasOptimizerState:
    """The variables of an optimizer of Keras, as objects of PyTorch give and take their state.

    It also is what `TrainingState` asks of an optimizer, one without slots for its parameters.
    """

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.state: dict[Any, Any] = {}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Return the parameters that it steps, once it is built."""
        return [{"params": [each.value for each in self.optimizer._trainable_variables]}]

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the values by place; the names of Keras count the models of a process."""
        variables = enumerate(self.optimizer.variables)
        return {str(place): each.value.detach().clone() for place, each in variables}

    def load_state_dict(self, state_dict: dict[str, torch.Tensor]) -> None:
        """Take over the values of another worker or of a checkpoint."""
        for place, variable in enumerate(self.optimizer.variables):
            variable.assign(state_dict[str(place)])
