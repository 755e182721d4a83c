"""`KerasRestart`: a script of TensorFlow that stops at a boundary and is started again.

All replicas learn in the same step that training is to stop, and do so before the next one. The
first one writes a checkpoint; the next start gives its state to all before the first step, unless
the script has restored a state by itself. Weights, slots, counters and the first worker's random
states come back. Plain variables of the script do not: its epoch and its place in the data.
"""

from __future__ import annotations

import base64
import gc
import json
import logging
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

import tensorflow as tf
from tensorflow.python.eager import context

from worker_agent.errors import StateRefused
from worker_agent.launcher.environment import stop_process
from worker_agent.launcher.patch import Patch
from worker_agent.settings import InstrumentationSettings
from worker_agent.state.checkpoints import Checkpointer
from worker_agent.state.progress import TrainingProgress
from worker_agent.tensorflow.ring import StepSignals
from worker_agent.tensorflow.state import KERAS_STATE_ERRORS, KerasState, copies_of

log = logging.getLogger(__name__)

SAVING_TIMEOUT = 300.0
LEAVING_TIMEOUT_MS = 10_000
PIECE = 1 << 20  # characters of a value in the coordination service
RESTORED_BEFORE = "restored.json"


class KerasRestart:
    """Saves the state of a process, and restores it in the next one.

    Args:
        settings: What the launcher wants of this process.
        progress: Returns where training stands.
        on_restored: Told where training stands once a checkpoint is restored.
        on_stop: Called before this process ends.
    """

    def __init__(
        self,
        settings: InstrumentationSettings,
        progress: Callable[[], TrainingProgress],
        on_restored: Callable[[TrainingProgress], None],
        on_stop: Callable[[], None],
    ) -> None:
        self.settings, self.progress = settings, progress
        self.on_restored, self.on_stop = on_restored, on_stop
        self.checkpointer: Checkpointer | None = None
        if settings.checkpoints is not None:
            self.checkpointer = Checkpointer.from_settings(Path(settings.checkpoints), settings)
        self.is_restore_due = settings.restarts > 0 and self.checkpointer is not None
        self.own = OwnCheckpoints(settings)
        self.trained: list[Any] = []
        self.can_save = True

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether it is time to save, between two steps."""
        return self.can_save and self.checkpointer is not None and self.checkpointer.is_due()

    def patches_of_checkpoints(self, owner: Any, *names: str, place: int = 1) -> tuple[Patch, ...]:
        """Return the patches of functions that restore what the script has saved at a path.

        Args:
            owner: Class or module of the functions.
            names: Their names.
            place: Which of their arguments the path is.
        """

        def note(*arguments: Any) -> None:
            self.own.note(arguments[place])

        return tuple(Patch(owner, name, after=note) for name in names)

    def on_variables(self, variables: Sequence[Any]) -> None:
        """Take note of what a step trains."""
        self.trained = self.trained or list(variables)

    def between_steps(self, signals: StepSignals) -> None:
        """Restore, save or stop; all replicas are between the same two steps."""
        if not self.trained:
            return  # what runs on the replicas so far trains nothing
        signals.gate.assign(0.0)
        if self.is_restore_due:
            self.is_restore_due = False
            self._restore()
        if float(signals.agreed.numpy()) > 0:
            self._stop()
        if self.settings.rank == 0 and self.checkpointer is not None and self.is_checkpoint_due:
            self._save(self.checkpointer)

    def _restore(self) -> None:
        """Restore the newest checkpoint on all workers, if there is one that fits."""
        state = self._state
        if state is None:
            return
        restored = None
        if self.settings.rank == 0 and self.checkpointer is not None:
            if self.own.is_newer:
                log.warning("scavenger: the script continues from its own checkpoint")
            else:
                restored = self.checkpointer.restore(state.restore)
        # After an error half of the workers might train other weights: it ends the script.
        if self.settings.workers > 1 and is_connected():
            restored = self._share(state, restored)
        if restored is not None:
            self.on_restored(restored)

    def _share(
        self, state: KerasState, restored: TrainingProgress | None
    ) -> TrainingProgress | None:
        """Give all workers what the first one has restored, if anything."""
        channel = CoordinationChannel("state")
        others = range(1, self.settings.workers)
        if self.settings.rank == 0:
            channel.send([b"" if restored is None else b"restored"], others)
            if restored is not None:
                state.send(channel, others, restored)
            return restored
        return state.receive(channel, 0) if channel.receive(0) else None

    def _save(self, checkpointer: Checkpointer) -> None:
        state = self._state
        if state is None:
            self.can_save = False
            return
        try:
            checkpointer.submit(state.snapshot(self.progress()), self.settings.generation)
        except (StateRefused, *KERAS_STATE_ERRORS) as error:
            self.can_save = False
            log.warning("scavenger: this script is not saved: %s", error)

    def _stop(self) -> None:
        """Save, and end this process; the first one ends last, since it coordinates all."""
        self.on_stop()
        workers, rank = self.settings.workers, self.settings.rank
        if rank == 0 and self.checkpointer is not None:
            self._save(self.checkpointer)
            self.checkpointer.close(SAVING_TIMEOUT)
        if workers > 1:
            service = context.context()
            with suppress(Exception):  # another one is gone already
                if rank == 0:
                    service.set_config_key_value("scavenger/saved", "1")
                    for other in range(1, workers):
                        service.get_config_key_value(f"scavenger/gone/{other}", LEAVING_TIMEOUT_MS)
                else:
                    service.get_config_key_value("scavenger/saved", int(SAVING_TIMEOUT * 1000))
                    service.set_config_key_value(f"scavenger/gone/{rank}", "1")
        stop_process(self.settings)

    @cached_property
    def _state(self) -> KerasState | None:
        """The state of training; None if no model holds what is trained."""
        try:
            model, optimizers = find_model(self.trained), find_optimizers(self.trained)
        except Exception:
            log.exception("scavenger: no checkpoint: what is trained was not found")
            return None
        if model is None or len(optimizers) != 1:
            log.warning(
                "scavenger: no checkpoint: it needs one Keras model that holds all trained"
                " variables and one optimizer; found %d optimizers. Let the script save and"
                " restore its state by itself",
                len(optimizers),
            )
            return None
        return KerasState(model, optimizers[0])


class OwnCheckpoints:
    """Tells whether a script has restored a checkpoint that its first start did not know.

    One that every start restores, such as pretrained weights, is where the job began.
    """

    def __init__(self, settings: InstrumentationSettings) -> None:
        self.is_first_start = settings.restarts == 0
        directory = settings.checkpoints
        self.file = None if directory is None else Path(directory) / RESTORED_BEFORE
        self.known: set[str] = set()
        if self.file is not None and not self.is_first_start:
            with suppress(OSError, ValueError):
                self.known = set(json.loads(self.file.read_text()))
        self.is_newer = False

    def note(self, path: Any) -> None:
        """Take note of a path that the script has restored from; None restores nothing."""
        if path is None:
            return
        if not self.is_first_start:
            self.is_newer = self.is_newer or str(path) not in self.known
        elif self.file is not None:
            self.known.add(str(path))
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.write_text(json.dumps(sorted(self.known)))


class CoordinationChannel:
    """Carries bytes from the first worker to the others, by the service that they met at.

    Implements `worker_agent.tensorflow.state.StateChannel`.
    """

    def __init__(self, purpose: str) -> None:
        self.purpose, self.number = f"scavenger/{purpose}", 0

    def send(self, content: Sequence[Any], _: Collection[int]) -> None:
        """Send bytes, which every other worker receives."""
        joined = b"".join(bytes(piece) for piece in content)
        text = base64.b64encode(joined).decode()
        pieces = [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
        service, key = context.context(), self._next_key()
        for place, piece in enumerate(pieces):
            service.set_config_key_value(f"{key}/{place}", piece)
        service.set_config_key_value(key, str(len(pieces)))

    def receive(self, _: int) -> bytes:
        """Return what the first worker sends."""
        service, key = context.context(), self._next_key()
        count = int(service.get_config_key_value(key))
        pieces = [service.get_config_key_value(f"{key}/{place}") for place in range(count)]
        return base64.b64decode("".join(pieces))

    def _next_key(self) -> str:
        self.number += 1
        return f"{self.purpose}/{self.number}"


def is_connected() -> bool:
    """Whether this process has met others of its job by TensorFlow's own service."""
    try:
        context.context().set_config_key_value(f"scavenger/here/{uuid4()}", "1")
    except tf.errors.OpError:
        return False
    return True


def find_model(trained: Sequence[Any]) -> Any | None:
    """Return the smallest Keras model in memory that holds all trained variables.

    The search takes as long as a garbage collection, so it is for restarts only.
    """
    wanted = {id(each) for each in copies_in(trained)}
    candidates = []
    for model in objects_of("Model"):
        held = {id(each) for each in copies_in(model.variables)}
        if wanted <= held:
            candidates.append((len(held), len(list(model._flatten_layers())), model))
    return min(candidates, key=lambda each: each[:2])[2] if candidates else None


def find_optimizers(trained: Sequence[Any]) -> list[Any]:
    """Return the Keras optimizers in memory that step these variables."""
    wanted = {id(each) for each in copies_in(trained)}

    def steps_them(optimizer: Any) -> bool:
        if hasattr(optimizer, "_index_dict"):  # of tf_keras
            return all(optimizer._var_key(each) in optimizer._index_dict for each in trained)
        return wanted <= {id(each) for each in copies_in(optimizer._trainable_variables)}

    return [each for each in objects_of("optimizers.Optimizer") if steps_them(each)]


def objects_of(name: str) -> Iterator[Any]:
    """Yield the objects in memory of a class of Keras 3 or tf_keras."""
    libraries = [sys.modules[each] for each in ("keras", "tf_keras") if each in sys.modules]
    kinds: list[Any] = []
    for library in libraries:
        kind = library
        for part in name.split("."):
            kind = getattr(kind, part)
        kinds.append(kind)
    for found in gc.get_objects():
        if isinstance(found, tuple(kinds)):
            yield found


def copies_in(variables: Sequence[Any]) -> Iterator[Any]:
    """Yield the copies of variables in this process."""
    for variable in variables:
        yield from copies_of(variable)
