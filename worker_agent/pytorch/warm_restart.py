"""`WarmRestart`: a script that cannot be resized live stops at a boundary and is started again.

All ranks stop after the same iteration and the first one writes a checkpoint. The next start
restores it before its first iteration, unless the script has loaded an optimizer's state by
itself. Weights, buffers, optimizer, schedulers, loss scalers and the first rank's random states
come back. Plain variables of the script do not: its epoch and its place in the data.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from worker_agent.errors import StateRefused
from worker_agent.launcher.patch import AnyFunction, Patch
from worker_agent.pytorch.keras import KerasOptimizerState
from worker_agent.pytorch.state import TrainingState
from worker_agent.pytorch.transfer import broadcast_tensor
from worker_agent.settings import InstrumentationSettings
from worker_agent.state.checkpoints import Checkpointer
from worker_agent.state.progress import Stateful, TrainingProgress

log = logging.getLogger(__name__)

RESTART_TIMEOUT = timedelta(minutes=5)


class WarmRestart:
    """Saves the state of a process periodically and when it stops, and restores it in the next one.

    Attributes:
        is_restore_due: Whether this process was restarted and has not restored a checkpoint yet.
    """

    def __init__(self, settings: InstrumentationSettings, tracked: TrackedObjects) -> None:
        self.settings, self.tracked = settings, tracked
        self.checkpointer = None
        if settings.checkpoints is not None:
            self.checkpointer = Checkpointer.from_settings(Path(settings.checkpoints), settings)
        self.is_restore_due = settings.restarts > 0 and self.checkpointer is not None
        self.can_save = True

    def restore_on_all_ranks(self, model: nn.Module) -> TrainingProgress | None:
        """Restore the first rank's checkpoint on all ranks; None if there is none."""
        self.is_restore_due = False
        group = dist.new_group(backend="gloo", timeout=RESTART_TIMEOUT)
        rank = dist.get_rank()
        progress = self.restore(model) if rank == 0 else None
        there = torch.tensor([-1 if progress is None else progress.iteration])
        broadcast_tensor(group, there, 0)
        state = self._state(model)
        if int(there) >= 0 and state is not None:
            progress = state.broadcast(group, rank, 0, progress or TrainingProgress())
        dist.destroy_process_group(group)
        return progress

    def restore(self, model: nn.Module | None) -> TrainingProgress | None:
        """Restore the newest checkpoint of the job; None if there is none that fits."""
        self.is_restore_due = False
        if self.tracked.has_resumed:
            log.warning("scavenger: the script continues from its own checkpoint")
            return None
        state = self._state(model)
        if state is None or self.checkpointer is None:
            return None
        return self.checkpointer.restore(state.restore)

    def save_if_due(self, model: nn.Module | None, progress: TrainingProgress) -> None:
        """Copy the state for a checkpoint if the last one is old; a thread writes it."""
        if self.can_save and self.checkpointer is not None and self.checkpointer.is_due():
            self.save(model, progress)

    def save(self, model: nn.Module | None, progress: TrainingProgress) -> None:
        """Copy the state for a checkpoint; a thread writes it."""
        state = self._state(model)
        if state is None or self.checkpointer is None:
            return
        try:
            self.checkpointer.submit(state.snapshot(progress), self.settings.generation)
        except StateRefused as error:
            self.can_save = False
            log.warning("scavenger: this script is not saved: %s", error)

    def wait_for_write(self) -> None:
        """Wait for the checkpoint that is being written."""
        if self.checkpointer is not None:
            self.checkpointer.close(RESTART_TIMEOUT.total_seconds())

    def _state(self, model: nn.Module | None) -> TrainingState | None:
        """Return the state of training; None if it is more than a checkpoint can hold."""
        optimizers = self.tracked.optimizers
        if model is None or len(optimizers) != 1:
            self.can_save = False
            log.warning(
                "scavenger: no checkpoint: it needs exactly one optimizer and a module that holds "
                "all its parameters; found %d optimizers. Let the script save and load its state "
                "by itself, as it would for torchrun",
                len(optimizers),
            )
            return None
        return TrainingState(model, optimizers[0], self.tracked.extra_state)


class TrackedObjects:
    """Tracks optimizers, schedulers and loss scalers in the order of their creation.

    Attributes:
        has_resumed: Whether the script has loaded an optimizer's state by itself.
    """

    def __init__(self) -> None:
        self.has_resumed = False
        self._optimizers: list[ref[Any]] = []
        self._extra_state: list[ref[Any]] = []
        self._keras_optimizers: list[ref[Any]] = []
        self.note_keras = record_into(self._keras_optimizers)

    def patches(self) -> tuple[Patch, ...]:
        kinds = (LRScheduler, ReduceLROnPlateau, GradScaler)
        return (
            Patch(Optimizer, "__init__", after=record_into(self._optimizers)),
            *(Patch(kind, "__init__", after=record_into(self._extra_state)) for kind in kinds),
            Patch(Optimizer, "load_state_dict", before=self._resumes),
        )

    def _resumes(self, *_: Any) -> None:
        self.has_resumed = True

    @property
    def optimizers(self) -> list[Any]:
        """Those of PyTorch that were made, and the states of those of Keras that have stepped."""
        return [*alive(self._optimizers), *self._keras_states]

    @property
    def _keras_states(self) -> list[KerasOptimizerState]:
        return [KerasOptimizerState(each) for each in alive(self._keras_optimizers)]

    @property
    def extra_state(self) -> Mapping[str, Stateful]:
        """Schedulers, enabled loss scalers and optimizers of Keras, by place and class."""
        objects = [each for each in alive(self._extra_state) if getattr(each, "_enabled", True)]
        objects += self._keras_states
        return {f"{place} {type(each).__name__}": each for place, each in enumerate(objects)}


def record_into(seen: list[ref[Any]]) -> AnyFunction:
    """Return a function that adds a new object to a list, once."""

    def note(made: Any, *_: Any) -> None:
        if all(each() is not made for each in seen):
            seen.append(ref(made))

    return note


def alive(seen: list[ref[Any]]) -> list[Any]:
    """Return the objects that still exist."""
    return [made for each in seen if (made := each()) is not None]
