"""`StageState`: the state of one process, and that of the whole model put together from all.

A checkpoint is of the whole model, so that any layout goes on from it. The first process of a
worker collects it from the others, and gives each of them its part when it is restored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import JsonValue
from torch import Tensor, nn
from torch.optim import Optimizer

from scavenger.layout import Layout
from worker_agent.errors import ProcessLost, StateRefused
from worker_agent.pytorch.layouts.chain import StagePart
from worker_agent.pytorch.layouts.tensor import ShardSpec
from worker_agent.pytorch.state import TrainingState, random_states
from worker_agent.pytorch.tensors import HostCopyPool, array_to_tensor, encode_torch_state
from worker_agent.state.codec import decode_state
from worker_agent.state.progress import HostArray, Stateful, TrainingProgress, TrainingSnapshot
from worker_agent.training.worker_processes import RestoreState
from worker_agent.transport.process_link import FollowerLinks, LeaderLink

SHARED_KINDS = ("parameters", "buffers")
BY_ROWS = ShardSpec(0)  # as ``fully_shard`` divides


@dataclass(frozen=True, slots=True)
class PackedState:
    """A state whose arrays can be sent to another process of this machine."""

    tree: JsonValue
    arrays: dict[str, HostArray]

    @classmethod
    def of(cls, state: object) -> PackedState:
        encoded = encode_torch_state(state)
        copied = HostCopyPool().copy(encoded.arrays)
        copied.wait()
        arrays = {
            name: replace(array, content=bytearray(array.content))
            for name, array in copied.arrays.items()
        }
        return cls(encoded.tree, arrays)

    def unpack(self) -> dict[str, Any]:
        return unpack_state(self.tree, self.arrays)


@dataclass(frozen=True, slots=True)
class WholeState:
    """How the state of the whole model is put together from those of its processes.

    Attributes:
        stages: What each stage has.
        shards: How parameters are divided among the tensor shards of a stage, by name.
        layout: How the processes share the model.
    """

    stages: tuple[StagePart, ...]
    shards: Mapping[str, ShardSpec]
    layout: Layout

    def join(self, states: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the state of the whole model from those of all processes, by position."""
        whole = dict(states[0])
        for kind in SHARED_KINDS:
            join = self._joined if kind == "parameters" else first_of
            whole[kind] = {
                name: join(name, [state[kind][name] for state in group])
                for _, group in self._groups(states)
                for name in group[0][kind]
            }
        slots: dict[int, dict[str, Any]] = {}
        for part, group in self._groups(states):
            of_group = [state["optimizer"]["slots"] for state in group]
            own = [state["parameters"] for state in group]
            for number, (place, name) in enumerate(zip(part.places, part.slot_names, strict=True)):
                each = [listed[number] for listed in of_group]
                slots[place] = {
                    key: self._joined(name, [one[key] for one in each])
                    if is_like(each[0][key], own[0][name])
                    else each[0][key]
                    for key in each[0]
                }
        whole["optimizer"] = {
            **states[0]["optimizer"],
            "slots": [slots[place] for place in sorted(slots)],
        }
        return whole

    def part(self, whole: dict[str, Any], position: int) -> dict[str, Any]:
        """Return what one process has of the state of the whole model."""
        stage = self.layout.stage_of(position)
        index = position - self.layout.positions(stage)[0]
        part, mine = self.stages[stage], dict(whole)
        for kind in SHARED_KINDS:
            # What is missing stays missing, and is refused where it is needed.
            own = self._own if kind == "parameters" else unchanged
            mine[kind] = {
                name: own(name, tensor, index)
                for name, tensor in whole[kind].items()
                if name in part.names
            }
        slots = whole["optimizer"]["slots"]
        mine["optimizer"] = {
            **whole["optimizer"],
            "slots": [
                {
                    key: self._own(name, value, index)
                    if is_like(value, whole["parameters"][name])
                    else value
                    for key, value in slots[place].items()
                }
                for place, name in zip(part.places, part.slot_names, strict=True)
            ],
        }
        return mine

    def refuse_unknown(self, whole: dict[str, Any]) -> None:
        """Raise StateRefused if a state has weights that no stage has."""
        known = frozenset[str]().union(*(part.names for part in self.stages))
        for kind in SHARED_KINDS:
            unknown = [name for name in whole[kind] if name not in known]
            if unknown:
                raise StateRefused(f"{kind}/{unknown[0]} is in the state and not in this model")

    def _groups(
        self, states: Sequence[dict[str, Any]]
    ) -> Iterator[tuple[StagePart, Sequence[dict[str, Any]]]]:
        for stage, part in enumerate(self.stages):
            positions = self.layout.positions(stage)
            if self.layout.is_asynchronous:  # each of them has all of the stage
                positions = positions[:1]
            yield part, states[positions.start : positions.stop]

    def _joined(self, name: str, parts: Sequence[Any]) -> Any:
        size = self.layout.shard
        if size > 1:
            parts = [BY_ROWS.whole(parts[low : low + size]) for low in range(0, len(parts), size)]
        spec = self.shards.get(name)
        return parts[0] if spec is None else spec.whole(parts)

    def _own(self, name: str, tensor: Tensor, index: int) -> Tensor:
        if self.layout.is_asynchronous:
            return tensor.clone()
        column, row = divmod(index, self.layout.shard)
        spec = self.shards.get(name)
        part = tensor if spec is None else spec.part(tensor, column, self.layout.tensor)
        return BY_ROWS.part(part, row, self.layout.shard).clone()


def first_of(_: str, parts: Sequence[Any]) -> Any:
    """Return a buffer, which all processes of a stage have whole."""
    return parts[0]


def unchanged(_: str, tensor: Tensor, index: int) -> Tensor:
    """Return a buffer for any process of a stage."""
    return tensor


def is_like(value: object, parameter: Tensor) -> bool:
    """Whether a slot of the optimizer is divided as its parameter is."""
    return isinstance(value, Tensor) and value.dim() > 0 and value.shape == parameter.shape


class StageState(TrainingState):
    """The state of one process of a worker.

    Args:
        model: The model, of which only the process's part is left.
        optimizer: Its optimizer, with that part's parameters.
        extra_state: As in `TrainingState`.
        parameters: That part's parameters by name, as the optimizer has them.
        whole: How the states of all processes make that of the whole model.
        link: Connections to the other processes.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        extra_state: Mapping[str, Stateful],
        parameters: Mapping[str, Tensor],
        whole: WholeState,
        link: FollowerLinks | LeaderLink,
    ) -> None:
        super().__init__(model, optimizer, extra_state)
        self.parameters, self.whole, self.link = parameters, whole, link

    def named_parameters(self) -> Mapping[str, Tensor]:
        return self.parameters

    def snapshot(self, progress: TrainingProgress) -> TrainingSnapshot:
        """Return the state of the whole model; a process that follows sends its own part."""
        mine = self._states()
        if isinstance(self.link, LeaderLink):
            self.link.send(PackedState.of(mine))
            return TrainingSnapshot(progress, None, {})
        states = [mine, *(each.unpack() for each in self.link.receive().values())]
        encoded = encode_torch_state({**self.whole.join(states), "random": random_states()})
        copy = self.copies.copy(encoded.arrays)
        return TrainingSnapshot(
            progress, encoded.tree, copy.arrays, copy.wait, lambda: self.copies.give_back(copy)
        )

    def restore(self, snapshot: TrainingSnapshot) -> TrainingProgress:
        """Take over this process's part of a snapshot of the whole model, of any layout.

        The leading process gives the others theirs.

        Raises:
            StateRefused: It does not fit; nothing was changed.
            ProcessLost: It fits some processes only.
        """
        if isinstance(self.link, LeaderLink):
            return super().restore(snapshot)
        try:
            whole = unpack_state(snapshot.tree, snapshot.arrays)
            self.whole.refuse_unknown(whole)
            parts = [
                PackedState.of(self.whole.part(whole, position))
                for position in range(self.link.count + 1)
            ]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise StateRefused(f"the state is not of this model: {error!r}") from error
        for position, packed in enumerate(parts[1:], 1):
            theirs = TrainingSnapshot(snapshot.progress, packed.tree, packed.arrays)
            self.link.send_to(position, RestoreState(theirs))
        refusals = [each for each in self.link.receive().values() if each]
        if refusals and len(refusals) < len(parts) - 1:
            raise ProcessLost(f"the state fits some processes only: {refusals[0]}")
        if refusals:
            raise StateRefused(refusals[0])
        own = TrainingSnapshot(snapshot.progress, parts[0].tree, parts[0].arrays)
        try:
            return super().restore(own)
        except StateRefused as error:
            raise ProcessLost(f"the state fits some processes only: {error}") from error


def unpack_state(tree: JsonValue, arrays: Mapping[str, HostArray]) -> dict[str, Any]:
    """Return a state whose tensors share the arrays' memory."""
    tensors: dict[str, Tensor] = {name: array_to_tensor(each) for name, each in arrays.items()}
    state: dict[str, Any] = decode_state(tree, tensors)
    return state
