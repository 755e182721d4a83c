"""Cuts a model, a chain of blocks, into stages, and leaves this process the blocks of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress, pairwise
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from scavenger.layout import Layout
from worker_agent.errors import UnsupportedModel
from worker_agent.pytorch.layouts.traced import trace_chain
from worker_agent.pytorch.optimizer_hooks import PicklableForwardHook
from worker_agent.pytorch.state import optimized_parameters


@dataclass(frozen=True, slots=True)
class StagePart:
    """What of a model and its optimizer one stage has.

    Attributes:
        names: Its parameters and buffers, as the whole model names them.
        places: Its parameters' places among those of the optimizer.
        slot_names: Those parameters' names, in the same order.
    """

    names: frozenset[str]
    places: tuple[int, ...]
    slot_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CutModel:
    """A model whose blocks are divided among stages.

    Attributes:
        chunks: The blocks of each stage, in order; of an interleaved pipeline, of each chunk.
        parts: What each stage has of the model and its optimizer.
    """

    chunks: tuple[tuple[nn.Module, ...], ...]
    parts: tuple[StagePart, ...]


def cut_model(
    model: nn.Module, optimizer: Optimizer, blocks: Iterable[Any] | None, layout: Layout
) -> CutModel:
    """Divide a model's blocks where the layout says, or so that no stage has needless weights.

    Args:
        model: The model, still whole.
        optimizer: Its optimizer.
        blocks: Modules of one argument each whose composition is the model; None for a
            ``Sequential``, or a model that can be traced.
        layout: How many stages, and where they are cut.

    Raises:
        UnsupportedModel: The blocks are no chain that can be cut; the message says why.
    """
    count, kind = layout.chunk_count, "stages" if layout.chunks == 1 else "chunks"
    chain = [model] if count == 1 else find_chain(model, blocks)
    if len(chain) < count:
        raise UnsupportedModel(
            f"{len(chain)} blocks cannot be cut into {count} {kind}: pass more blocks to"
            f" job.prepare, or ask for fewer {kind}"
        )
    sizes = [sum(p.numel() for p in block.parameters()) for block in chain]
    edges = edges_at(layout.cuts, model, chain) if layout.cuts else balanced_edges(sizes, count)
    cut = tuple(tuple(chain[low:high]) for low, high in pairwise(edges))
    names = {id(tensor): name for name, tensor in named_tensors(model)}
    refuse_shared_tensors(cut, names, kind)
    optimized = list(optimized_parameters(optimizer))
    parts = []
    for stage in range(layout.pipeline):
        blocks_of_stage = [block for number in layout.chunks_of(stage) for block in cut[number]]
        own = {id(tensor) for tensor in tensors_of(blocks_of_stage)}
        places = tuple(place for place, p in enumerate(optimized) if id(p) in own)
        slot_names = tuple(names[id(optimized[place])] for place in places)
        known = frozenset(names[each] for each in own if each in names)
        parts.append(StagePart(known, places, slot_names))
    if sum(len(part.places) for part in parts) < len(optimized):
        raise UnsupportedModel(
            "the optimizer steps parameters that belong to no block: pass all blocks to job.prepare"
        )
    return CutModel(cut, tuple(parts))


def find_chain(model: nn.Module, blocks: Iterable[Any] | None) -> list[nn.Module]:
    """Return the blocks whose composition is the model; raises UnsupportedModel."""
    if blocks is None:
        return parts_of_sequence(model) if isinstance(model, nn.Sequential) else trace_chain(model)
    chain = list(blocks)
    within = {id(tensor) for tensor in tensors_of(chain)}
    outside = [name for name, tensor in named_tensors(model) if id(tensor) not in within]
    if outside:
        raise UnsupportedModel(
            f"{', '.join(outside[:3])}: no block has them. Pass all parts of the model in order,"
            " as in blocks=[model.embedding, *model.blocks, model.head]"
        )
    return chain


def parts_of_sequence(model: nn.Sequential) -> list[nn.Module]:
    """Return the parts of a sequence; what changes its input in place stays with the part before.

    What a stage receives is a leaf of its graph, which nothing may change.
    """
    groups: list[list[nn.Module]] = []
    for part in model:
        leaf = next(each for each in part.modules() if not list(each.children()))
        if groups and getattr(leaf, "inplace", False):
            groups[-1].append(part)
        else:
            groups.append([part])
    return [group[0] if len(group) == 1 else nn.Sequential(*group) for group in groups]


def edges_at(cuts: Sequence[str], model: nn.Module, chain: Sequence[nn.Module]) -> list[int]:
    """Return where stages begin and end if those after the first begin with certain modules.

    Raises:
        UnsupportedModel: The model has no such module, or no block begins with it.
    """
    modules = dict(model.named_modules())
    names = {id(tensor): name for name, tensor in model.named_parameters()}
    firsts = [next((id(p) for p in block.parameters()), None) for block in chain]
    edges = [0]
    for cut in cuts:
        module = modules.get(cut)
        first = None if module is None else next(module.parameters(), None)
        place = next((at for at, block in enumerate(chain) if block is module), -1)
        if place < 0 and first is not None and id(first) in firsts:
            place = firsts.index(id(first))
        if place <= edges[-1]:
            why = "the model has no such module" if module is None else "no block begins with it"
            if place >= 0:
                why = "a stage before begins there or later"
            known = [names[each].rpartition(".")[0] for each in firsts[1:] if each is not None]
            raise UnsupportedModel(
                f"no stage can begin with {cut}, as {why}: write cuts in rising order, from"
                f" {', '.join(known)}"
            )
        edges.append(place)
    return [*edges, len(chain)]


def balanced_edges(sizes: Sequence[int], stages: int) -> list[int]:
    """Return where stages begin and end so that the largest is as small as it can be.

    >>> balanced_edges([4, 1, 1, 1, 1], 2)
    [0, 1, 5]
    """
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    count = len(sizes)
    least: dict[tuple[int, int], tuple[float, list[int]]] = {(0, 0): (0.0, [0])}
    for stage in range(1, stages + 1):
        for end in range(stage, count - (stages - stage) + 1):
            least[stage, end] = min(
                (max(least[stage - 1, start][0], ends[end] - ends[start]), [*before, end])
                for start in range(stage - 1, end)
                if (stage - 1, start) in least
                for before in [least[stage - 1, start][1]]
            )
    return least[stages, count][1]


def refuse_shared_tensors(
    cut: Sequence[Sequence[nn.Module]], names: dict[int, str], kind: str
) -> None:
    """Raise UnsupportedModel if two stages, or two chunks, would have the same weights."""
    owner: dict[int, int] = {}
    for number, blocks in enumerate(cut):
        for tensor in tensors_of(blocks):
            first = owner.setdefault(id(tensor), number)
            if first != number:
                raise UnsupportedModel(
                    f"{names.get(id(tensor), 'a weight')} is shared by {kind} {first} and {number}:"
                    f" tied weights must be in one of the {kind}. Untie them, or set"
                    " limits.layout.pipeline to 1"
                )


def refuse_batch_statistics(model: nn.Module, layout: Layout) -> None:
    """Raise UnsupportedModel if the model's batch statistics would be of parts of a batch."""
    what, field = ("micro-batch", "micro_batches") if layout.shard == 1 else ("process", "shard")
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            raise UnsupportedModel(
                f"{name} would see the samples of one {what} only: set limits.layout.{field} to 1,"
                " or use a norm without batch statistics"
            )


def keep_stage(
    model: nn.Module, optimizer: Optimizer, cut: CutModel, stage: int
) -> tuple[nn.Module, ...]:
    """Leave this process the blocks of its stage, and return them as a module for each chunk.

    The model keeps the names of what is left, so that its state is a part of the whole state.
    """
    part = cut.parts[stage]
    for path, module in model.named_modules():
        for kind in (module._parameters, module._buffers):
            for name in list(kind):
                if (f"{path}.{name}" if path else name) not in part.names:
                    kind[name] = None
    kept = set(part.places)
    place = 0
    for group in optimizer.param_groups:
        mine = [place + number in kept for number in range(len(group["params"]))]
        place += len(mine)
        for name in ("params", "param_names"):
            if name in group:
                group[name] = list(compress(group[name], mine))
    if len(cut.chunks) == 1:
        return (model,)
    model.register_forward_pre_hook(PicklableForwardHook(_refuse_call))
    return tuple(nn.Sequential(*chunk) for chunk in cut.chunks[stage :: len(cut.parts)])


def _refuse_call(*_: Any) -> None:
    raise RuntimeError(
        "this process has only some blocks of the model: train with job.step(inputs, targets), and"
        " evaluate with job.predict(inputs) where job.evaluates"
    )


def tensors_of(blocks: Iterable[nn.Module]) -> list[Tensor]:
    """Return parameters and buffers of some modules."""
    return [t for block in blocks for t in (*block.parameters(), *block.buffers())]


def named_tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Return parameters and buffers of a model by name."""
    return [*model.named_parameters(), *model.named_buffers()]
