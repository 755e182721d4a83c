"""A worker's side of parameter servers: flat weights, and the state that servers do not hold.

The order of weights is that of the reducer's buckets, so a gradient is sent from where it was
computed, unless some of it is not contiguous: shards outlive workers, whose memory formats may
differ.

Weights and optimizer state live on the servers. The rest of what makes a newcomer equal to the
others is small (buffers, the optimizer's options, schedulers, a loss scaler, the progress), so
workers leave it as text with the first server.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from pydantic import JsonValue, TypeAdapter
from pydantic_core import to_json
from torch import Tensor, nn
from torch.optim import Optimizer

from worker_agent.errors import StateRefused
from worker_agent.parameter_server.client import ParameterServerClient
from worker_agent.parameter_server.messages import (
    OptimizerSlots,
    Precision,
    Segment,
    ShardManifest,
    ShardValues,
    segments_within,
    shard_ranges,
)
from worker_agent.pytorch.gradient_buckets import GradientBucket
from worker_agent.pytorch.server_shard import describe_optimizer, is_per_weight, shared_scalars
from worker_agent.pytorch.state import group_options, load_group_options
from worker_agent.pytorch.tensors import (
    assign_values,
    dtype_name,
    encode_torch_state,
    flatten_all,
    match_layout,
)
from worker_agent.state.codec import decode_state
from worker_agent.state.progress import Stateful, TrainingProgress


class FlatModel:
    """The parameters of the reducer's buckets on their way to and from the servers.

    Args:
        optimizer: The script's optimizer; its hyperparameters and groups are what servers use.
        buckets: The reducer's buckets, which hold the gradients.

    Attributes:
        weights: Room for all weights on the host, shape (size,).

    Raises:
        UnsupportedServerOptimizer: Servers cannot run this optimizer.
    """

    def __init__(self, optimizer: Optimizer, buckets: Sequence[GradientBucket]) -> None:
        self.optimizer, self.buckets = optimizer, buckets
        self.parameters = [p for bucket in buckets for p in bucket.parameters]
        groups = {
            id(parameter): number
            for number, group in enumerate(optimizer.param_groups)
            for parameter in group["params"]
        }
        self.segments = [Segment(groups[id(p)], p.numel()) for p in self.parameters]
        describe_optimizer(optimizer)  # raises now what would otherwise end the first iteration
        is_double = any(p.dtype == torch.float64 for p in self.parameters)
        self.precision: Precision = "float64" if is_double else "float32"
        self.weights = torch.empty(
            sum(p.numel() for p in self.parameters), dtype=getattr(torch, self.precision)
        )

    @property
    def rates(self) -> list[float]:
        """The learning rate of each parameter group at this moment."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def gradient(self) -> list[Tensor]:
        """Return the gradients on the host, as pieces that lie end to end."""
        kind = self.weights.dtype
        return [
            bucket.contiguous_gradient().to("cpu", kind) for bucket in self.buckets if bucket.size
        ]

    def copy_weights_to_model(self) -> None:
        """Give the model the weights."""
        with torch.no_grad():
            torch._foreach_copy_(
                [parameter.data for parameter in self.parameters],
                [piece.view_as(p) for p, piece in self._pieces(self.weights)],
            )

    def export_shard(
        self, low: int, high: int, clock: str, samples: int
    ) -> tuple[ShardManifest, list[ShardValues]]:
        """Return the part between two places: what it holds, and its values."""
        segments = segments_within(self.segments, low, high)
        slots, vectors = self._slots(low, segments)
        said = ShardManifest(
            precision=self.precision,
            description=describe_optimizer(self.optimizer),
            segments=segments,
            slots=slots,
            clock=clock,
            samples=samples,
        )
        values = [self._flat(p.data for p in self.parameters)[low:high], *vectors]
        return said, [each.numpy() for each in values]

    def put(
        self, client: ParameterServerClient, server: int, iteration: int, clock: str, samples: int
    ) -> None:
        """Hand an empty server its shard."""
        low, high = shard_ranges(self.weights.numel(), len(client.addresses))[server]
        client.put(server, iteration, *self.export_shard(low, high, clock, samples))

    def load_optimizer_state(self, parts: Sequence[tuple[ShardManifest, ShardValues]]) -> None:
        """Give the script's optimizer the state that servers hold; the parts are in shard order."""
        flats: dict[str, list[Tensor]] = {}
        scalars: dict[int, Mapping[str, float]] = {}
        for manifest, values in parts:
            floats, start = torch.from_numpy(values), manifest.size
            for segment, slots in zip(manifest.segments, manifest.slots, strict=True):
                scalars[segment.group] = slots.scalars
                for name in slots.vectors:
                    flats.setdefault(name, []).append(floats[start : start + segment.size])
                    start += segment.size
        whole = {name: torch.cat(pieces) for name, pieces in flats.items()}
        for number, (parameter, segment) in enumerate(
            zip(self.parameters, self.segments, strict=True)
        ):
            state: dict[str, Any] = {
                name: torch.tensor(value) for name, value in scalars[segment.group].items()
            }
            for name, flat in whole.items():
                if flat.numel() == self.weights.numel():
                    piece = self._pieces(flat)[number][1]
                    slot = piece.view_as(parameter).to(parameter.device, parameter.dtype)
                    state[name] = match_layout(parameter, slot)
            if state:
                self.optimizer.state[parameter] = state

    def _slots(
        self, low: int, segments: Sequence[Segment]
    ) -> tuple[tuple[OptimizerSlots, ...], list[Tensor]]:
        """Return the optimizer's state of these segments, which begin at a place."""
        described, vectors = [], []
        flats: dict[str, Tensor] = {}
        for segment, state in zip(segments, self._states(low, segments), strict=True):
            names = tuple(sorted(name for name, value in state.items() if is_per_weight(value)))
            described.append(OptimizerSlots(shared_scalars(state), names))
            for name in names:
                if name not in flats:
                    flats[name] = self._flat(self._slot(p, name) for p in self.parameters)
                vectors.append(flats[name][low : low + segment.size])
            low += segment.size
        return tuple(described), vectors

    def _states(self, low: int, segments: Sequence[Segment]) -> Iterator[Mapping[str, Any]]:
        """Return the slots of the first parameter of each segment; its others have the same."""
        ends = torch.tensor([p.numel() for p in self.parameters]).cumsum(0)
        for segment in segments:
            first = int(torch.searchsorted(ends, low, right=True))
            yield self.optimizer.state.get(self.parameters[first], {})
            low += segment.size

    def _slot(self, parameter: Tensor, name: str) -> Tensor:
        value = self.optimizer.state.get(parameter, {}).get(name)
        return value if is_per_weight(value) else torch.zeros_like(parameter)

    def _flat(self, tensors: Iterable[Tensor]) -> Tensor:
        """Lay tensors, one per parameter, end to end on the host."""
        return flatten_all(tensor.to("cpu", self.weights.dtype) for tensor in tensors)

    def _pieces(self, flat: Tensor) -> list[tuple[Tensor, Tensor]]:
        pieces = torch.split(flat, [p.numel() for p in self.parameters])
        return list(zip(self.parameters, pieces, strict=True))


MAX_CLIENT_STATE_BYTES = 1 << 21  # bytes of text


@dataclass(frozen=True, slots=True)
class EncodedTensor:
    """One tensor; its content is the base64 of its bytes."""

    dtype: str
    shape: tuple[int, ...]
    content: str


@dataclass(frozen=True, slots=True)
class ClientState:
    """The clock, and the state that servers do not keep.

    Attributes:
        clock: Where training stands.
        tree: Buffers, options and extra state as ``encode_state`` returns them, or None.
        tensors: Their tensors by name.
    """

    clock: TrainingProgress
    tree: JsonValue = None
    tensors: Mapping[str, EncodedTensor] = field(default_factory=dict)


_CLIENT_STATE: TypeAdapter[ClientState] = TypeAdapter(ClientState)


def pack_client_state(
    progress: TrainingProgress,
    model: nn.Module,
    optimizer: Optimizer,
    extra_state: Mapping[str, Stateful],
) -> str:
    """Encode progress and small state; buffers too large to be left with a server are left out.

    Raises:
        StateRefused: An object holds a value that cannot be saved or sent.
    """
    states = {name: stateful.state_dict() for name, stateful in extra_state.items()}
    # Schedules that multiply what they find go on from the rates that the others have.
    options = [group_options(group) for group in optimizer.param_groups]
    small = {"carried": states, "groups": options}
    encoded = encode_torch_state({"buffers": dict(model.named_buffers()), **small})
    if sum(tensor.nbytes for tensor in encoded.arrays.values()) > MAX_CLIENT_STATE_BYTES // 2:
        encoded = encode_torch_state({"buffers": {}, **small})
    packed = {name: encode_tensor(tensor) for name, tensor in encoded.arrays.items()}
    return to_json(ClientState(progress, encoded.tree, packed), inf_nan_mode="strings").decode()


def pack_progress(progress: TrainingProgress) -> str:
    """Encode the progress only."""
    return to_json(ClientState(progress), inf_nan_mode="strings").decode()


def unpack_client_state(
    text: str, model: nn.Module, optimizer: Optimizer, extra_state: Mapping[str, Stateful]
) -> TrainingProgress:
    """Take over what another worker left with the servers; returns its progress.

    Raises:
        StateRefused: It is not of this script.
    """
    try:
        received = _CLIENT_STATE.validate_json(text)
    except ValueError as error:
        raise StateRefused(f"the state left by other workers cannot be read: {error}") from error
    if received.tree is None:
        return received.clock
    tensors = {name: decode_tensor(packed) for name, packed in received.tensors.items()}
    state: dict[str, Any] = decode_state(received.tree, tensors)
    mine = dict(model.named_buffers())
    with torch.no_grad():
        for name, buffer in state["buffers"].items():
            if name not in mine or mine[name].shape != buffer.shape:
                raise StateRefused(f"buffer {name} of other workers does not fit this model")
            assign_values(mine[name], buffer)
        for group, options in zip(optimizer.param_groups, state["groups"], strict=False):
            load_group_options(group, options)
    for name, stateful in extra_state.items():
        if name in state["carried"]:
            stateful.load_state_dict(state["carried"][name])
    return received.clock


def encode_tensor(tensor: Tensor) -> EncodedTensor:
    """Encode a tensor as text; any type, as bytes, because NumPy knows no bfloat16."""
    flat = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    content = base64.b64encode(flat.numpy().tobytes()).decode()
    return EncodedTensor(dtype_name(tensor.dtype), tuple(tensor.shape), content)


def decode_tensor(packed: EncodedTensor) -> Tensor:
    """Decode a tensor."""
    content = bytearray(base64.b64decode(packed.content))
    dtype: torch.dtype = getattr(torch, packed.dtype)
    if not content:
        return torch.empty(packed.shape, dtype=dtype)
    return torch.frombuffer(content, dtype=torch.uint8).view(dtype).reshape(packed.shape)
