"""The state that makes a newcomer equal to the others, and a checkpoint equal to the moment.

The source describes its state in JSON and names its tensors; a newcomer builds the same tensors
without a pretended optimizer step, then everything travels as one flat tensor per data type.
Whatever does not fit is found before anything is changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from pydantic import JsonValue
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from worker_agent.errors import StateRefused
from worker_agent.strategies.broadcasting import broadcast_bytes, broadcast_tensors
from worker_agent.strategies.description import Description, TensorFacts, misfit
from worker_agent.strategies.host_copies import HostCopies, tensor_of
from worker_agent.strategies.layout import assign
from worker_agent.strategies.optimizer_state import (
    check_optimizer_state,
    load_optimizer_state,
    optimized,
    optimizer_state,
    slot_tensors,
)
from worker_agent.strategies.randomness import random_states, restore_random_states
from worker_agent.strategies.snapshot import Snapshot, Stateful, states_of
from worker_agent.strategies.strategy import Clock
from worker_agent.strategies.tree import decode, encode

WEIGHTS = ("parameters/", "buffers/", "others/")
NOT_A_STATE = (ValueError, TypeError, LookupError, AttributeError, RuntimeError)


class TrainingState:
    """Everything of a training process that the next iteration depends on.

    Args:
        model: The model, without DDP.
        optimizer: Its optimizer.
        carried: Whatever else has a state, by name: schedulers, a ``GradScaler``, averages.

    Raises:
        StateRefused: One of them holds what cannot be carried.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, carried: Mapping[str, Stateful] | None = None
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.carried = dict(carried or {})
        self.copies = HostCopies()
        encode(states_of(self.carried))

    def broadcast(self, group: ProcessGroup, rank: int, source: int, clock: Clock) -> Clock:
        """Make every member equal to the source; returns the source's clock.

        Raises:
            StateRefused: The source's state cannot be carried (on all members), or does not fit
                here (on this member only); nothing was changed.
        """
        if rank == source:
            self._send(group, source, clock)
            return clock
        return self._receive(group, source)

    def snapshot(self, clock: Clock) -> Snapshot:
        """Copy the state into host memory; this alone holds up training for a checkpoint.

        Raises:
            StateRefused: Something in it cannot be carried; training itself is unharmed.
        """
        tree = encode({**self._states(), "random": random_states()})
        copy = self.copies.copy(tree.tensors)
        return Snapshot(
            clock, tree.json, copy.arrays, copy.wait, lambda: self.copies.give_back(copy)
        )

    def restore(self, snapshot: Snapshot) -> Clock:
        """Take over a snapshot, whatever number of workers it was taken with.

        Raises:
            StateRefused: It does not fit; nothing was changed, unless the message says that an
                object of the script refused its part.
        """
        try:
            tensors = {name: tensor_of(array) for name, array in snapshot.arrays.items()}
        except NOT_A_STATE as error:
            raise StateRefused(f"the arrays of the state are damaged: {error}") from error
        state = self._fitting(snapshot.tree, tensors)
        with torch.no_grad():
            for name, mine in self._weights().items():
                assign(mine, tensors[name])
        self._take_over(state)
        with refusing("the random states"):
            restore_random_states(state["random"])
        return snapshot.clock

    def _send(self, group: ProcessGroup, source: int, clock: Clock) -> None:
        try:
            tree = encode(self._states())
        except StateRefused as refused:
            said = Description(clock, None, {}, refusal=str(refused))
            broadcast_bytes(group, said.to_json(), source)
            raise
        facts = {name: TensorFacts.of(tensor) for name, tensor in tree.tensors.items()}
        said = Description(clock, tree.json, facts)
        broadcast_bytes(group, said.to_json(), source)
        broadcast_tensors(group, tree.tensors.values(), source)

    def _receive(self, group: ProcessGroup, source: int) -> Clock:
        said = Description.from_json(broadcast_bytes(group, b"", source))
        if said.refusal:
            raise StateRefused(said.refusal)
        mine = {**self._weights(), **slot_tensors(self.optimizer)}
        room = said.room(mine, self._device)
        try:
            state = self._fitting(said.tree, room)
        except StateRefused:
            unread = said.room({}, self._device)
            broadcast_tensors(group, unread.values(), source)  # lest the others wait in vain
            raise
        fresh = {id(tensor) for name, tensor in room.items() if tensor is not mine.get(name)}
        broadcast_tensors(group, room.values(), source, fresh=fresh)
        with torch.no_grad():
            for name, tensor in self._weights().items():
                if id(room[name]) in fresh:  # it lies in another order there
                    assign(tensor, room[name])
        self._take_over(state)
        return said.clock

    def _states(self) -> dict[str, Any]:
        """Return everything that is the same on all workers."""
        return {
            **{kind: dict(tensors) for kind, tensors in self._kinds().items()},
            "optimizer": optimizer_state(self.optimizer),
            "carried": states_of(self.carried),
        }

    def _kinds(self) -> dict[str, dict[str, Tensor]]:
        """Return what the optimizer and the passes change, by kind and name."""
        known = {id(parameter) for parameter in self.model.parameters()}
        return {
            "parameters": {name: p.data for name, p in self.model.named_parameters()},
            "buffers": {name: b.data for name, b in self.model.named_buffers()},
            "others": {
                str(place): parameter.data
                for place, parameter in enumerate(optimized(self.optimizer))
                if id(parameter) not in known
            },
        }

    def _weights(self) -> dict[str, Tensor]:
        """Return the same by the names the tree gives them."""
        return {
            f"{kind}/{name}": tensor
            for kind, tensors in self._kinds().items()
            for name, tensor in tensors.items()
        }

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _fitting(self, tree: JsonValue, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the state made of these tensors, whose values may be yet to come.

        Raises:
            StateRefused: It is not of this model, optimizer and carried objects.
        """
        theirs = {name: tensor for name, tensor in tensors.items() if name.startswith(WEIGHTS)}
        why_not = misfit(theirs, self._weights())
        if why_not is not None:
            raise StateRefused(why_not)
        state: dict[str, Any] = decode(tree, tensors)
        with refusing("its form"):
            check_optimizer_state(self.optimizer, state["optimizer"])
            names = sorted(state["carried"])
        if names != sorted(self.carried):
            raise StateRefused(f"the state carries {names}, this script {sorted(self.carried)}")
        return state

    def _take_over(self, state: dict[str, Any]) -> None:
        """Give the optimizer and the carried objects their parts."""
        with torch.no_grad():
            load_optimizer_state(self.optimizer, state["optimizer"])
        for name, stateful in self.carried.items():
            with refusing(name):
                stateful.load_state_dict(state["carried"][name])


@contextmanager
def refusing(part: str) -> Iterator[None]:
    """Turn what a state of the wrong form causes into StateRefused."""
    try:
        yield
    except NOT_A_STATE as error:
        raise StateRefused(f"the state cannot be taken over: {part}: {error!r}") from error
