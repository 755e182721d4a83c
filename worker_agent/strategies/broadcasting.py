"""Broadcasting: bytes and tensors from one member of a group to all others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import torch
from torch import Tensor
from torch.distributed import BroadcastOptions, ProcessGroup, Work

from worker_agent.strategies.layout import assign, in_memory_order, seen_as, strides_of

LARGE = 1 << 18  # bytes from which on a tensor travels faster alone than copied


def broadcast_bytes(group: ProcessGroup, content: bytes, source: int) -> bytes:
    """Send bytes from the source to every member; what the others pass is ignored."""
    length = torch.tensor([len(content)])
    broadcast(group, length, source)
    buffer = torch.zeros(int(length), dtype=torch.uint8)
    if content:
        buffer.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    broadcast(group, buffer, source)
    return bytes(buffer.numpy())


def broadcast_tensors(
    group: ProcessGroup, tensors: Iterable[Tensor], source: int, *, fresh: Collection[int] = ()
) -> None:
    """Copy the source's tensors into everybody's: large ones each, small ones together.

    Nothing that was in use is overwritten before all has arrived: a source that dies leaves no half
    of a state.

    Args:
        group: The members, all of which call this with tensors of the same shapes, types and
            ``strides_of``: values travel in the order they lie in.
        tensors: What to send, or where to put it.
        source: Rank of the sender.
        fresh: Ids of tensors that hold nothing yet, so that they are received in place.
    """
    parcels = parcels_of(tensors)
    is_source = group.rank() == source
    flats = [packed(parcel) if is_source else room(parcel, fresh) for parcel in parcels]
    # As bytes, because gloo knows few data types.
    for work in [start(group, flat.view(torch.uint8), source) for flat in flats]:
        work.wait()
    if not is_source:
        for flat, parcel in zip(flats, parcels, strict=True):
            unpack(flat, parcel)


def parcels_of(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Return what travels together, the same on every member: only sizes and types count."""
    alone: list[list[Tensor]] = []
    together: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        if tensor.nbytes >= LARGE:
            alone.append([tensor])
        elif tensor.nbytes > 0:
            together.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return [*alone, *together.values()]


def packed(parcel: Sequence[Tensor]) -> Tensor:
    """Return the values of a parcel in one row; those of a single tensor are not copied."""
    rows = [in_memory_order(tensor.detach()) for tensor in parcel]
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def room(parcel: Sequence[Tensor], fresh: Collection[int]) -> Tensor:
    """Return a row to receive a parcel in: the tensor itself when it holds nothing yet."""
    first = parcel[0]
    if len(parcel) == 1 and id(first) in fresh:
        return in_memory_order(first)
    size = sum(tensor.numel() for tensor in parcel)
    return torch.empty(size, dtype=first.dtype, device=first.device)


def unpack(flat: Tensor, parcel: Sequence[Tensor]) -> None:
    """Copy a row into the tensors of a parcel, unless it is them."""
    if flat.data_ptr() == parcel[0].data_ptr():
        return
    pieces = torch.split(flat, [tensor.numel() for tensor in parcel])
    for tensor, piece in zip(parcel, pieces, strict=True):
        assign(tensor, seen_as(piece, tensor.shape, strides_of(tensor)))


def broadcast(group: ProcessGroup, tensor: Tensor, source: int) -> None:
    """Overwrite the tensor with the source's."""
    start(group, tensor, source).wait()


def start(group: ProcessGroup, tensor: Tensor, source: int) -> Work:
    """Begin to overwrite the tensor with the source's; the work's ``wait`` ends it."""
    options = BroadcastOptions()
    options.rootRank = source
    return group.broadcast([tensor], options)
