"""Where training stands (`TrainingProgress`), and all of its state (`TrainingSnapshot`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pydantic import JsonValue

from scavenger.measurement.noise import SmoothedNoise
from scavenger.protocol import Directive, Progress


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """Where training stands; it travels with the weights.

    Attributes:
        iteration: Iterations applied over the whole job.
        samples: Samples consumed, the position in the data order.
        epochs: Progress in reference epochs.
        provisional: The part of it that was counted while noise had not settled.
        learning_rate_factor: What the script's learning rates were last multiplied with.
        noise: The noise averages, as the leader keeps them.
    """

    iteration: int = 0
    samples: int = 0
    epochs: float = 0.0
    provisional: float = 0.0
    learning_rate_factor: float = 1.0
    noise: SmoothedNoise = SmoothedNoise()  # noqa: RUF009

    def after_iteration(self, directive: Directive) -> TrainingProgress:
        """Return where training stands one iteration of a generation later."""
        worth = directive.progress_per_iteration
        return replace(
            self,
            iteration=self.iteration + 1,
            samples=self.samples + directive.config.global_batch,
            epochs=self.epochs + worth,
            provisional=self.provisional + worth * directive.is_provisional,
        )

    def corrected_for(self, directive: Directive) -> TrainingProgress:
        """Return where training stands as a generation counts it; doing so again changes nothing.

        Progress that was counted by noise that had not settled is corrected as soon as it has.
        """
        if directive.is_provisional or not self.provisional:
            return self
        corrected = self.epochs + self.provisional * (directive.correction - 1)
        return replace(self, epochs=corrected, provisional=0.0)

    def to_message(self, generation: int) -> Progress:
        """Return the message for the controller, without metrics."""
        return Progress(generation, self.iteration, self.samples, self.epochs, {})


class Stateful(Protocol):
    """Anything whose state can be asked for and given back, as PyTorch's objects do it."""

    def state_dict(self) -> Any:
        """Return the state: numbers, text, lists, tuples, sets, dicts and tensors."""

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Take over a state that ``state_dict`` returned."""


def collect_states(objects: Mapping[str, Stateful]) -> dict[str, Any]:
    """Return the state of each object by name.

    A method that was replaced on the object itself is no state, though PyTorch's schedulers, which
    return all their attributes, say so.
    """
    found = {}
    for name, owner in objects.items():
        state = owner.state_dict()
        if type(state) is dict:
            state = {
                key: value
                for key, value in state.items()
                if not (callable(value) and callable(getattr(type(owner), str(key), None)))
            }
        found[name] = state
    return found


@dataclass(frozen=True, slots=True)
class HostArray:
    """One tensor in host memory.

    Attributes:
        dtype: Name of its type as PyTorch says it, such as ``float32``.
        shape: Its sizes; empty for a scalar.
        content: Its values, row by row, in the byte order of the machine.
    """

    dtype: str
    shape: tuple[int, ...]
    content: bytes | bytearray | memoryview


def _do_nothing() -> None: ...


@dataclass(frozen=True, slots=True)
class TrainingSnapshot:
    """Everything of a training process that the next iteration depends on.

    Attributes:
        progress: Where training stands.
        tree: The plain part of the state as ``encode_state`` returns it.
        arrays: Its tensors by name.
        wait: Returns when the arrays hold their values; a device may still be copying.
        release: Gives the arrays' memory back; they must not be read afterwards.
    """

    progress: TrainingProgress
    tree: JsonValue
    arrays: Mapping[str, HostArray]
    wait: Callable[[], None] = _do_nothing
    release: Callable[[], None] = _do_nothing
