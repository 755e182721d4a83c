"""`TrainingState`: all state that the next iteration depends on, for newcomers and checkpoints.

The source describes its state in JSON and names its tensors; a newcomer builds the same tensors
without a simulated optimizer step, then large tensors are sent one by one and small ones together,
per data type and device. A mismatch is found before anything is changed.

Optimizer state is passed without copies: ``Optimizer.load_state_dict`` copies every slot and
casts it to the type of its parameter; between equal workers both are wrong. A checkpoint holds
the leader's random states. Newcomers get their own streams, because all workers would drop the
same neurons otherwise; a deterministic job seeds all streams anew in each iteration.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from pydantic import JsonValue
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from worker_agent.errors import StateRefused
from worker_agent.pytorch.optimizer_hooks import optimizer_name
from worker_agent.pytorch.tensors import (
    HostCopyPool,
    array_to_tensor,
    assign_values,
    encode_torch_state,
    match_layout,
)
from worker_agent.pytorch.transfer import (
    StateManifest,
    TensorInfo,
    broadcast_bytes,
    broadcast_tensors,
    first_mismatch,
)
from worker_agent.state.codec import decode_state
from worker_agent.state.progress import Stateful, TrainingProgress, TrainingSnapshot, collect_states
from worker_agent.state.seeds import mix_seed, seed_python_and_numpy

WEIGHT_PREFIXES = ("parameters/", "buffers/", "others/")
STATE_ERRORS = (ValueError, TypeError, LookupError, AttributeError, RuntimeError)


class TrainingState:
    """Everything of a training process that the next iteration depends on.

    Args:
        model: The model, without DDP.
        optimizer: Its optimizer.
        extra_state: What else has a state, by name: schedulers, a ``GradScaler``, averages.

    Raises:
        StateRefused: One of them holds what cannot be saved or sent.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        extra_state: Mapping[str, Stateful] | None = None,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.extra_state = dict(extra_state or {})
        self.copies = HostCopyPool()
        encode_torch_state(collect_states(self.extra_state))

    def broadcast(
        self, group: ProcessGroup, rank: int, source: int, progress: TrainingProgress
    ) -> TrainingProgress:
        """Make every member equal to the source; returns the source's progress.

        Raises:
            StateRefused: The source's state cannot be sent (on all members), or does not fit
                here (on this member only); nothing was changed.
        """
        if rank == source:
            self._send(group, source, progress)
            return progress
        return self._receive(group, source)

    def snapshot(self, progress: TrainingProgress) -> TrainingSnapshot:
        """Copy the state into host memory; this alone holds up training for a checkpoint.

        Raises:
            StateRefused: Something in it cannot be saved; training itself is unharmed.
        """
        encoded = encode_torch_state({**self._states(), "random": random_states()})
        copy = self.copies.copy(encoded.arrays)
        return TrainingSnapshot(
            progress, encoded.tree, copy.arrays, copy.wait, lambda: self.copies.give_back(copy)
        )

    def restore(self, snapshot: TrainingSnapshot) -> TrainingProgress:
        """Take over a snapshot; it may have been taken with another number of workers.

        Raises:
            StateRefused: It does not fit; nothing was changed, unless the message says that an
                object of the script refused its part.
        """
        try:
            tensors = {name: array_to_tensor(array) for name, array in snapshot.arrays.items()}
        except STATE_ERRORS as error:
            raise StateRefused(f"the arrays of the state are damaged: {error}") from error
        state = self._fitting(snapshot.tree, tensors)
        with torch.no_grad():
            for name, mine in self._weights().items():
                assign_values(mine, tensors[name])
        self._take_over(state)
        with refuse_on_error("the random states"):
            restore_random_states(state["random"])
        return snapshot.progress

    def _send(self, group: ProcessGroup, source: int, progress: TrainingProgress) -> None:
        try:
            encoded = encode_torch_state(self._states())
        except StateRefused as refused:
            said = StateManifest(progress, None, {}, refusal=str(refused))
            broadcast_bytes(group, said.to_json(), source)
            raise
        facts = {name: TensorInfo.of(tensor) for name, tensor in encoded.arrays.items()}
        said = StateManifest(progress, encoded.tree, facts)
        broadcast_bytes(group, said.to_json(), source)
        broadcast_tensors(group, encoded.arrays.values(), source)

    def _receive(self, group: ProcessGroup, source: int) -> TrainingProgress:
        said = StateManifest.from_json(broadcast_bytes(group, b"", source))
        if said.refusal:
            raise StateRefused(said.refusal)
        mine = {**self._weights(), **slot_tensors(self.optimizer)}
        allocated = said.allocate(mine, self._device)
        try:
            state = self._fitting(said.tree, allocated)
        except StateRefused:
            unread = said.allocate({}, self._device)
            broadcast_tensors(group, unread.values(), source)  # lest the others wait in vain
            raise
        fresh = {id(tensor) for name, tensor in allocated.items() if tensor is not mine.get(name)}
        broadcast_tensors(group, allocated.values(), source, fresh=fresh)
        with torch.no_grad():
            for name, tensor in self._weights().items():
                if id(allocated[name]) in fresh:  # it lies in another order there
                    assign_values(tensor, allocated[name])
        self._take_over(state)
        return said.clock

    def _states(self) -> dict[str, Any]:
        """Return everything that is the same on all workers."""
        return {
            **{kind: dict(tensors) for kind, tensors in self._kinds().items()},
            "optimizer": collect_optimizer_state(self.optimizer),
            "carried": collect_states(self.extra_state),
        }

    def _kinds(self) -> dict[str, dict[str, Tensor]]:
        """Return what the optimizer and the passes change, by kind and name."""
        parameters = self.named_parameters()
        known = {id(parameter) for parameter in parameters.values()}
        return {
            "parameters": {name: p.data for name, p in parameters.items()},
            "buffers": {name: b.data for name, b in self.model.named_buffers()},
            "others": {
                str(place): parameter.data
                for place, parameter in enumerate(optimized_parameters(self.optimizer))
                if id(parameter) not in known
            },
        }

    def named_parameters(self) -> Mapping[str, Tensor]:
        """Return the model's parameters by name, as the optimizer has them."""
        return dict(self.model.named_parameters())

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
            StateRefused: It is not of this model, optimizer and extra state.
        """
        theirs = {
            name: tensor for name, tensor in tensors.items() if name.startswith(WEIGHT_PREFIXES)
        }
        why_not = first_mismatch(theirs, self._weights())
        if why_not is not None:
            raise StateRefused(why_not)
        state: dict[str, Any] = decode_state(tree, tensors)
        with refuse_on_error("its form"):
            check_optimizer_state(self.optimizer, state["optimizer"])
            names = sorted(state["carried"])
        if names != sorted(self.extra_state):
            mine = sorted(self.extra_state)
            raise StateRefused(f"the state contains objects named {names}; this script has {mine}")
        return state

    def _take_over(self, state: dict[str, Any]) -> None:
        """Give the optimizer and the objects of the extra state their parts."""
        with torch.no_grad():
            load_optimizer_state(self.optimizer, state["optimizer"])
        for name, stateful in self.extra_state.items():
            with refuse_on_error(name):
                stateful.load_state_dict(state["carried"][name])


@contextmanager
def refuse_on_error(part: str) -> Iterator[None]:
    """Turn what a state of the wrong form causes into StateRefused."""
    try:
        yield
    except STATE_ERRORS as error:
        raise StateRefused(f"the state cannot be taken over: {part}: {error!r}") from error


NON_OPTIONS = ("params", "param_names")


def optimized_parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    """Yield the parameters in the order of their groups."""
    for group in optimizer.param_groups:
        yield from group["params"]


def collect_optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
    """Return slots and options, with the optimizer's own tensors, for ``encode_state``."""
    return {
        "kind": optimizer_name(optimizer),
        "slots": [dict(optimizer.state.get(p, {})) for p in optimized_parameters(optimizer)],
        "common": shared_slots(optimizer),
        "groups": [group_options(group) for group in optimizer.param_groups],
    }


def shared_slots(optimizer: Optimizer) -> dict[str, Any]:
    """Return what an optimizer keeps for no parameter in particular, as some do under a text."""
    kept: dict[Any, Any] = dict(optimizer.state)
    return {key: value for key, value in kept.items() if not isinstance(key, Tensor)}


def slot_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the slots that are tensors by the names ``encode_state`` gives them."""
    return {
        f"optimizer/slots/{place}/{name}": value
        for place, parameter in enumerate(optimized_parameters(optimizer))
        for name, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def check_optimizer_state(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """See whether a state belongs to such an optimizer.

    Raises:
        StateRefused: It is of another kind, or has other groups or numbers of parameters.
    """
    sizes = len(state["slots"]), len(state["groups"])
    mine = len(list(optimized_parameters(optimizer))), len(optimizer.param_groups)
    if (state["kind"], *sizes) != (optimizer_name(optimizer), *mine):
        raise StateRefused(
            f"the state is of {state['kind']} with {sizes[0]} parameters in {sizes[1]} groups; the"
            f" optimizer here is {optimizer_name(optimizer)} with {mine[0]} in {mine[1]}"
        )


def load_optimizer_state(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Give the optimizer these slots themselves, and the options of these groups."""
    for group, options in zip(optimizer.param_groups, state["groups"], strict=True):
        load_group_options(group, options)
    slots_of = iter(state["slots"])
    optimizer.state.clear()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if slots := next(slots_of):
                optimizer.state[parameter] = {
                    name: place_slot(value, parameter, group) for name, value in slots.items()
                }
    optimizer.state.update(state["common"])


def group_options(group: dict[str, Any]) -> dict[str, Any]:
    """Return a group's options; functions are part of the script, and the same in every process."""
    return {
        name: value
        for name, value in group.items()
        if name not in NON_OPTIONS and (isinstance(value, Tensor) or not callable(value))
    }


def load_group_options(group: dict[str, Any], options: dict[str, Any]) -> None:
    """Overwrite a group's options; a learning rate that is a tensor stays that tensor."""
    for name, value in options.items():
        mine = group.get(name)
        if isinstance(mine, Tensor) and isinstance(value, Tensor) and mine.shape == value.shape:
            mine.copy_(value)
        else:
            group[name] = value


def place_slot(value: Any, parameter: Tensor, group: dict[str, Any]) -> Any:
    """Return a slot where and as optimizers keep it: scalars on the host unless the step is fused.

    What is as large as the parameter lies as it does, not in the order it came in.
    """
    if not isinstance(value, Tensor):
        return value
    is_with_parameter = value.dim() > 0 or group.get("fused") or group.get("capturable")
    return match_layout(parameter, value.to(parameter.device)) if is_with_parameter else value


_CUDA: Any = torch.cuda  # not annotated in part


def random_states() -> dict[str, Any]:
    """Return the states of Python's, NumPy's and PyTorch's generators, for ``encode_state``."""
    version, words, gauss = random.getstate()
    states: dict[str, Any] = {
        "python": (version, torch.tensor(words), gauss),
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state(),
    }
    if _CUDA.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_random_states(states: dict[str, Any]) -> None:
    """Give all generators the states that ``random_states`` returned.

    Raises:
        ValueError, TypeError, KeyError, RuntimeError: They are not states of these generators.
    """
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def reseed_worker(seed: int, worker_rank: int, generation: int) -> None:
    """Give this worker random streams that no other worker has, now or in another generation."""
    seed_all(mix_seed(b"worker", seed, worker_rank, generation))


def seed_iteration(seed: int, first_sample_position: int) -> None:
    """Set all random streams as a function of where in the data the iteration begins."""
    seed_all(mix_seed(b"iteration", seed, first_sample_position))


def seed_all(seed: int) -> None:
    """Seed every generator; _CUDA's only where it is in use, as starting it takes seconds."""
    torch.default_generator.manual_seed(seed)
    if _CUDA.is_initialized():
        torch.cuda.manual_seed(seed)
    seed_python_and_numpy(seed)
