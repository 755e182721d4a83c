"""`KerasState`: the variables of a Keras model and its optimizer, for newcomers and checkpoints.

A state is checked against the variables here before anything is changed. Variables are compared by
place, shape and type: Keras counts the layers of a process in their names, so two workers that
built other models before may call one variable differently.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from pydantic import JsonValue, TypeAdapter
from pydantic_core import to_json

from worker_agent.errors import StateRefused
from worker_agent.state.codec import EncodedState, decode_state, encode_state
from worker_agent.state.progress import (
    HostArray,
    Stateful,
    TrainingProgress,
    TrainingSnapshot,
    collect_states,
)
from worker_agent.state.seeds import mix_seed
from worker_agent.tensorflow.optimizer import backing_variable
from worker_agent.transport.connection import Buffer

Array = npt.NDArray[Any]
FRAMEWORK_NAME = "tensorflow"
SEED_BITS = (1 << 31) - 1
KERAS_STATE_ERRORS = (ValueError, TypeError, LookupError, AttributeError, tf.errors.OpError)


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """What a newcomer must know of an array to make room for it.

    Attributes:
        dtype: Name of its type as TensorFlow says it, such as ``float32``.
        shape: Its sizes.
    """

    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, array: Array) -> ArrayInfo:
        return cls(tf.as_dtype(array.dtype).name, tuple(array.shape))

    @property
    def size(self) -> int:
        """Bytes of its values."""
        return math.prod(self.shape) * int(tf.as_dtype(self.dtype).size)

    def read(self, content: Any) -> Array:
        """Return the array whose values these bytes are, without a copy."""
        values = np.frombuffer(content, dtype=tf.as_dtype(self.dtype).as_numpy_dtype)
        return values.reshape(self.shape)


@dataclass(frozen=True, slots=True)
class KerasStateManifest:
    """A state without the values of its arrays.

    Attributes:
        clock: Where training stands.
        tree: The plain part of the state.
        arrays: The arrays' facts by name, in the order in which they travel.
        refusal: Why the state cannot be sent; empty when it can.
    """

    clock: TrainingProgress
    tree: JsonValue
    arrays: dict[str, ArrayInfo]
    refusal: str = ""


_MANIFEST: TypeAdapter[KerasStateManifest] = TypeAdapter(KerasStateManifest)


class StateChannel(Protocol):
    """Carries a state from one process to others; a `Mesh` is one."""

    def send(self, content: Sequence[Buffer], receivers: Collection[int]) -> None:
        """Send bytes to processes of these ranks."""

    def receive(self, source: int) -> Buffer:
        """Return what a process sends."""


class KerasState:
    """Everything of a training process that the next iteration depends on.

    Args:
        model: A model of Keras 3 or tf_keras that is built.
        optimizer: Its optimizer, built too.
        extra_state: What else has a state, by name.

    Raises:
        StateRefused: Something in the extra state cannot be saved or sent.
    """

    def __init__(
        self, model: Any, optimizer: Any, extra_state: Mapping[str, Stateful] | None = None
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.extra_state = dict(extra_state or {})
        encode(collect_states(self.extra_state))

    def receive(self, channel: StateChannel, source: int) -> TrainingProgress:
        """Take over the state that a member sends; returns its progress.

        Raises:
            StateRefused: The state cannot be sent, or does not fit here; nothing was changed.
            GenerationBroken: A member is gone.
        """
        said = _MANIFEST.validate_json(bytes(channel.receive(source)))
        if said.refusal:
            raise StateRefused(said.refusal)
        content = memoryview(channel.receive(source))
        arrays, start = {}, 0
        for name, info in said.arrays.items():
            arrays[name] = info.read(content[start : start + info.size])
            start += info.size
        self._take_over(said.tree, arrays)
        return said.clock

    def snapshot(self, progress: TrainingProgress) -> TrainingSnapshot:
        """Copy the state; raises StateRefused if something in it cannot be saved."""
        return to_snapshot({**self._states(), "random": random_states()}, progress)

    def restore(self, snapshot: TrainingSnapshot) -> TrainingProgress:
        """Take over a snapshot; it may have been taken with another number of workers.

        Raises:
            StateRefused: It does not fit; nothing was changed, unless the message says that an
                object of the script refused its part.
        """
        state = self._take_over(snapshot.tree, arrays_in(snapshot))
        try:
            restore_random_states(state["random"])
        except KERAS_STATE_ERRORS as error:
            raise StateRefused(f"the state cannot be taken over: {error!r}") from error
        return snapshot.progress

    def reseed(self, *numbers: int, purpose: bytes = b"iteration") -> None:
        """Set the model's own random streams, such as those of dropout."""
        for place, variable in enumerate(self._variables()["model"]):
            if is_seed_state(variable):
                mixed = mix_seed(purpose, *numbers, place)
                # Keras makes seeds of 31 bits; the type of the variable differs by backend.
                words = np.array([mixed & SEED_BITS, mixed >> 32 & SEED_BITS])
                variable.assign(words.astype(variable.dtype.as_numpy_dtype))

    def send(
        self, channel: StateChannel, receivers: Collection[int], progress: TrainingProgress
    ) -> None:
        """Send the state to members that receive it.

        Raises:
            StateRefused: It cannot be sent; the receivers are told.
            GenerationBroken: A member is gone.
        """
        try:
            encoded = encode(self._states())
        except StateRefused as refused:
            said = KerasStateManifest(progress, None, {}, refusal=str(refused))
            channel.send([to_json(said, inf_nan_mode="strings")], receivers)
            raise
        facts = {name: ArrayInfo.of(array) for name, array in encoded.arrays.items()}
        said = KerasStateManifest(progress, encoded.tree, facts)
        channel.send([to_json(said, inf_nan_mode="strings")], receivers)
        content = [
            np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            for array in encoded.arrays.values()
        ]
        channel.send(content, receivers)

    def _copies(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return each variable of this process, once for each of its replicas here."""
        return {
            "model": [copies_of(each) for each in self.model.variables],
            "optimizer": [copies_of(each) for each in self.optimizer.variables],
        }

    def _variables(self) -> dict[str, list[Any]]:
        return {kind: [each[0] for each in found] for kind, found in self._copies().items()}

    def _states(self) -> dict[str, Any]:
        """Return everything that is the same on all workers."""
        return {
            "framework": FRAMEWORK_NAME,
            **{kind: dict(enumerate(each)) for kind, each in self._variables().items()},
            "carried": collect_states(self.extra_state),
        }

    def _take_over(self, tree: JsonValue, arrays: Mapping[str, Array]) -> dict[str, Any]:
        """Check a whole state, then assign it; returns it."""
        state: Any = decode_state(tree, arrays)
        if not isinstance(state, dict) or state.get("framework") != FRAMEWORK_NAME:
            raise StateRefused("the state is not of a model of TensorFlow")
        try:
            for kind, mine in self._variables().items():
                refuse_mismatch(kind, state[kind], mine)
            names = sorted(state["carried"])
        except KERAS_STATE_ERRORS as error:
            raise StateRefused(f"the state cannot be taken over: {error!r}") from error
        if names != sorted(self.extra_state):
            mine_too = sorted(self.extra_state)
            raise StateRefused(
                f"the state contains objects named {names}; this script has {mine_too}"
            )
        for kind, copies in self._copies().items():
            for place, own in enumerate(copies):
                for variable in own:
                    variable.assign(state[kind][place])
        for name, stateful in self.extra_state.items():
            try:
                stateful.load_state_dict(state["carried"][name])
            except KERAS_STATE_ERRORS as error:
                raise StateRefused(f"the state cannot be taken over: {name}: {error!r}") from error
        return state


def copies_of(variable: Any) -> tuple[Any, ...]:
    """Return a variable's copies in this process; several where a strategy mirrors it."""
    backing = backing_variable(variable)
    return tuple(getattr(backing, "values", (backing,)))


def encode(state: object) -> EncodedState:
    """Take a state apart; TensorFlow's variables and tensors become NumPy arrays."""

    def find_array(value: object, _: str) -> Array | None:
        if isinstance(value, tf.Variable | tf.Tensor):
            array: Array = np.asarray(value.numpy())
            return array
        return None

    return encode_state(state, find_array)


def to_snapshot(state: object, progress: TrainingProgress) -> TrainingSnapshot:
    """Copy a state; raises StateRefused if something in it cannot be saved."""
    encoded = encode(state)
    arrays = {
        name: HostArray(info.dtype, info.shape, np.ascontiguousarray(array).tobytes())
        for name, array in encoded.arrays.items()
        for info in [ArrayInfo.of(array)]
    }
    return TrainingSnapshot(progress, encoded.tree, arrays)


def arrays_in(snapshot: TrainingSnapshot) -> dict[str, Array]:
    """Return the arrays of a snapshot; raises StateRefused if they are damaged."""
    try:
        return {
            name: ArrayInfo(each.dtype, each.shape).read(each.content)
            for name, each in snapshot.arrays.items()
        }
    except KERAS_STATE_ERRORS as error:
        raise StateRefused(f"the arrays of the state are damaged: {error}") from error


def refuse_mismatch(kind: str, theirs: Mapping[int, Any], mine: Sequence[Any]) -> None:
    """Say what the first variable that does not fit is in the state and here.

    Raises:
        StateRefused: There is one.
    """
    if len(theirs) != len(mine):
        raise StateRefused(
            f"the {kind} has {len(theirs)} variables in the state and {len(mine)} here"
        )
    for place, variable in enumerate(mine):
        there = ArrayInfo.of(np.asarray(theirs[place]))
        here = ArrayInfo(variable.dtype.name, tuple(variable.shape))
        if there != here:
            raise StateRefused(
                f"{variable.name} of the {kind} is {there.dtype} {there.shape} in the state and"
                f" {here.dtype} {here.shape} here"
            )


def is_seed_state(variable: Any) -> bool:
    """Whether this is the state of a ``keras.random.SeedGenerator``."""
    is_pair = tuple(variable.shape) == (2,) and variable.dtype.is_integer
    return is_pair and "seed_generator_state" in variable.name


def random_states() -> dict[str, Any]:
    """Return the states of Python's and NumPy's generators, for ``encode``."""
    return {"python": random.getstate(), "numpy": np.random.get_state(legacy=False)}


def restore_random_states(states: dict[str, Any]) -> None:
    """Give the generators the states that ``random_states`` returned.

    Raises:
        ValueError, TypeError, KeyError: They are not states of these generators.
    """
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
