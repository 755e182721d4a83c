"""`StageState`: the state of one stage, and that of the whole model put together from all stages.

A checkpoint is of the whole model, so that any layout goes on from it. The first process of a
worker collects it from the others, and gives each of them its part when it is restored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import JsonValue
from torch import Tensor, nn
from torch.optim import Optimizer

from worker_agent.errors import ProcessLost, StateRefused
from worker_agent.pytorch.layouts.chain import StagePart
from worker_agent.pytorch.state import TrainingState, random_states
from worker_agent.pytorch.tensors import HostCopyPool, array_to_tensor, encode_torch_state
from worker_agent.state.codec import decode_state
from worker_agent.state.progress import HostArray, Stateful, TrainingProgress, TrainingSnapshot
from worker_agent.training.worker_processes import RestoreState
from worker_agent.transport.process_link import FollowerLinks, LeaderLink

SHARED_KINDS = ("parameters", "buffers")


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


class StageState(TrainingState):
    """The state of one stage of a worker.

    Args:
        model: The model, of which only the stage's blocks are left.
        optimizer: Its optimizer, with the stage's parameters.
        extra_state: As in `TrainingState`.
        parts: What each stage has of the whole, by the position of its process.
        link: Connections to the other processes.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        extra_state: Mapping[str, Stateful],
        parts: tuple[StagePart, ...],
        link: FollowerLinks | LeaderLink,
    ) -> None:
        super().__init__(model, optimizer, extra_state)
        self.parts, self.link = parts, link

    def snapshot(self, progress: TrainingProgress) -> TrainingSnapshot:
        """Return the state of the whole model; a process that follows sends its own part."""
        mine = self._states()
        if isinstance(self.link, LeaderLink):
            self.link.send(PackedState.of(mine))
            return TrainingSnapshot(progress, None, {})
        states = [mine, *(each.unpack() for each in self.link.receive().values())]
        whole = {**mine, "random": random_states()}
        for kind in SHARED_KINDS:
            whole[kind] = {name: value for state in states for name, value in state[kind].items()}
        slots: dict[int, Any] = {}
        for part, state in zip(self.parts, states, strict=True):
            slots |= dict(zip(part.places, state["optimizer"]["slots"], strict=True))
        whole["optimizer"] = {
            **mine["optimizer"],
            "slots": [slots[place] for place in sorted(slots)],
        }
        encoded = encode_torch_state(whole)
        copy = self.copies.copy(encoded.arrays)
        return TrainingSnapshot(
            progress, encoded.tree, copy.arrays, copy.wait, lambda: self.copies.give_back(copy)
        )

    def restore(self, snapshot: TrainingSnapshot) -> TrainingProgress:
        """Take over this stage's part of a snapshot of the whole model, or of any layout of it.

        The leading process gives the others theirs.

        Raises:
            StateRefused: It does not fit; nothing was changed.
            ProcessLost: It fits some stages only.
        """
        if isinstance(self.link, LeaderLink):
            return super().restore(snapshot)
        try:
            whole = unpack_state(snapshot.tree, snapshot.arrays)
            refuse_unknown(whole, self.parts)
            parts = [PackedState.of(take_part(whole, part)) for part in self.parts]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise StateRefused(f"the state is not of this model: {error!r}") from error
        for position, packed in enumerate(parts[1:], 1):
            theirs = TrainingSnapshot(snapshot.progress, packed.tree, packed.arrays)
            self.link.send_to(position, RestoreState(theirs))
        refusals = [each for each in self.link.receive().values() if each]
        if refusals and len(refusals) < len(parts) - 1:
            raise ProcessLost(f"the state fits some stages only: {refusals[0]}")
        if refusals:
            raise StateRefused(refusals[0])
        try:
            return super().restore(
                TrainingSnapshot(snapshot.progress, parts[0].tree, parts[0].arrays)
            )
        except StateRefused as error:
            raise ProcessLost(f"the state fits some stages only: {error}") from error


def refuse_unknown(whole: dict[str, Any], parts: tuple[StagePart, ...]) -> None:
    """Raise StateRefused if a state has weights that no stage has."""
    known = frozenset[str]().union(*(part.names for part in parts))
    for kind in SHARED_KINDS:
        unknown = [name for name in whole[kind] if name not in known]
        if unknown:
            raise StateRefused(f"{kind}/{unknown[0]} is in the state and not in this model")


def take_part(whole: dict[str, Any], part: StagePart) -> dict[str, Any]:
    """Return what a stage has of a state of the whole model."""
    mine = dict(whole)
    for kind in SHARED_KINDS:
        # What is missing stays missing, and is refused where it is needed.
        mine[kind] = {name: t for name, t in whole[kind].items() if name in part.names}
    slots = whole["optimizer"]["slots"]
    mine["optimizer"] = {**whole["optimizer"], "slots": [slots[place] for place in part.places]}
    return mine


def unpack_state(tree: JsonValue, arrays: Mapping[str, HostArray]) -> dict[str, Any]:
    """Return a state whose tensors share the arrays' memory."""
    tensors: dict[str, Tensor] = {name: array_to_tensor(each) for name, each in arrays.items()}
    state: dict[str, Any] = decode_state(tree, tensors)
    return state
