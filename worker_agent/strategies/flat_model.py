"""FlatModel: trained parameters laid end to end, as parameter servers keep them.

The order is that of the reducer's buckets, so a gradient is sent from where it was made, unless
some of it does not lie row by row: shards outlive workers, whose memory formats may differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from worker_agent.parameter_server.message import Holding, Precision
from worker_agent.parameter_server.optimizer import Slots, describe, is_vector
from worker_agent.parameter_server.shard import Segment, within
from worker_agent.strategies.layout import laid_end_to_end, like
from worker_agent.strategies.reducer import Bucket


class FlatModel:
    """The parameters of the reducer's buckets on their way to and from the servers.

    Args:
        optimizer: The script's optimizer; its hyperparameters and groups are what servers use.
        buckets: The reducer's buckets, which hold the gradients.

    Attributes:
        weights: Room for all weights on the host, shape (size,).

    Raises:
        NotServable: Servers cannot run this optimizer.
    """

    def __init__(self, optimizer: Optimizer, buckets: Sequence[Bucket]) -> None:
        self.optimizer, self.buckets = optimizer, buckets
        self.parameters = [p for bucket in buckets for p in bucket.parameters]
        groups = {
            id(parameter): number
            for number, group in enumerate(optimizer.param_groups)
            for parameter in group["params"]
        }
        self.segments = [Segment(groups[id(p)], p.numel()) for p in self.parameters]
        describe(optimizer)  # raises now what would otherwise end the first iteration
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
        return [bucket.row_by_row().to("cpu", kind) for bucket in self.buckets if bucket.size]

    def load(self) -> None:
        """Give the model the weights."""
        with torch.no_grad():
            torch._foreach_copy_(
                [parameter.data for parameter in self.parameters],
                [piece.view_as(p) for p, piece in self._pieces(self.weights)],
            )

    def holding(self, low: int, high: int, clock: str, samples: int) -> tuple[Holding, Any]:
        """Return the part between two places: what it holds, and its tensors."""
        segments = within(self.segments, low, high)
        slots, vectors = self._slots(low, segments)
        said = Holding(
            precision=self.precision,
            description=describe(self.optimizer),
            segments=segments,
            slots=slots,
            clock=clock,
            samples=samples,
        )
        return said, [self._flat(p.data for p in self.parameters)[low:high], *vectors]

    def take_slots(self, parts: Sequence[tuple[Holding, Tensor]]) -> None:
        """Give the script's optimizer the state that the servers hold, in shard order."""
        flats: dict[str, list[Tensor]] = {}
        scalars: dict[int, Mapping[str, float]] = {}
        for holding, floats in parts:
            start = holding.size
            for segment, slots in zip(holding.segments, holding.slots, strict=True):
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
                    state[name] = like(parameter, slot)
            if state:
                self.optimizer.state[parameter] = state

    def _slots(
        self, low: int, segments: Sequence[Segment]
    ) -> tuple[tuple[Slots, ...], list[Tensor]]:
        """Return the optimizer's state of these segments, which begin at a place."""
        described, vectors = [], []
        flats: dict[str, Tensor] = {}
        for segment, state in zip(segments, self._states(low, segments), strict=True):
            names = tuple(sorted(name for name, value in state.items() if is_vector(value)))
            scalars = {
                name: float(value)
                for name, value in state.items()
                if value is not None and name not in names
            }
            described.append(Slots(scalars, names))
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
        return value if is_vector(value) else torch.zeros_like(parameter)

    def _flat(self, tensors: Iterable[Tensor]) -> Tensor:
        """Lay tensors, one per parameter, end to end on the host."""
        return laid_end_to_end(tensor.to("cpu", self.weights.dtype) for tensor in tensors)

    def _pieces(self, flat: Tensor) -> list[tuple[Tensor, Tensor]]:
        pieces = torch.split(flat, [p.numel() for p in self.parameters])
        return list(zip(self.parameters, pieces, strict=True))
