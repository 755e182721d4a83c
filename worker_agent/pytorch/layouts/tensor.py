"""Weights that the processes of a stage share: linear layers by columns and rows, vocabularies.

As in Megatron-LM: a layer that is cut by columns is followed by one that is cut by rows, so that
only the sum after the second travels, and the gradient of the first one's input on the way back.
Parameters stay plain tensors, each process's own part of the whole, so optimizers, clipping and
scalers work as they do on a whole model (docs/decisions/0059).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional
from torch.optim import Optimizer

from worker_agent.errors import UnsupportedModel

Cut = Literal["column", "row", "embedding", "head", "vocabulary", "qkv"]
CUTS: tuple[Cut, ...] = get_args(Cut)

# Names of the layers of well-known transformers, as their libraries write them.
KNOWN_PLAN: Mapping[str, Cut] = {
    # Llama and its relatives.
    **dict.fromkeys(("*.q_proj", "*.k_proj", "*.v_proj", "*.gate_proj", "*.up_proj"), "column"),
    **dict.fromkeys(("*.o_proj", "*.down_proj"), "row"),
    # BERT and ViT.
    **dict.fromkeys(("*.query", "*.key", "*.value", "*.intermediate.dense"), "column"),
    "*.output.dense": "row",
    # GPT-2, whose two kinds of layers share a name.
    "*.c_attn": "qkv",
    "*.c_fc": "column",
    "*.c_proj": "row",
    **dict.fromkeys(("*.fc1", "*.linear1"), "column"),
    **dict.fromkeys(("*.fc2", "*.linear2"), "row"),
    **dict.fromkeys(("*embed_tokens", "*.wte"), "embedding"),
    "*lm_head": "head",
}
VOCABULARIES: tuple[Cut, ...] = ("embedding", "head", "vocabulary")
# What the module of a cut layer knows of heads, or of their sizes together.
COUNTS_OF_HEADS = ("num_heads", "num_attention_heads", "all_head_size", "split_size")


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """How a tensor is divided among the processes of a stage.

    Attributes:
        dim: The dimension that is cut.
        blocks: Parts of that dimension, each of which is cut: 3 where queries, keys and values lie
            one after the other.
    """

    dim: int
    blocks: int = 1

    def part(self, whole: Tensor, index: int, count: int) -> Tensor:
        """Return the part of one process of so many; without an equal one the last have less."""
        blocks = whole.chunk(self.blocks, self.dim)
        return torch.cat([self._piece(block, index, count) for block in blocks], self.dim)

    def whole(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the tensor that these are the parts of."""
        cut = [part.chunk(self.blocks, self.dim) for part in parts]
        return torch.cat([each for blocks in zip(*cut, strict=True) for each in blocks], self.dim)

    def _piece(self, block: Tensor, index: int, count: int) -> Tensor:
        size = block.shape[self.dim]
        length = -(-size // count)
        start = min(index * length, size)
        return block.narrow(self.dim, start, min(length, size - start))


SPECS: Mapping[Cut, Mapping[str, ShardSpec]] = {
    "column": {"weight": ShardSpec(0), "bias": ShardSpec(0)},
    "qkv": {"weight": ShardSpec(0, 3), "bias": ShardSpec(0, 3)},
    "head": {"weight": ShardSpec(0), "bias": ShardSpec(0)},
    "vocabulary": {"weight": ShardSpec(0), "bias": ShardSpec(0)},
    "row": {"weight": ShardSpec(1)},
    "embedding": {"weight": ShardSpec(0)},
}


@dataclass(frozen=True, slots=True)
class EnteredTensor:
    """What was handed to all parts of a layer.

    Attributes:
        source: The tensor.
        version: How often it had been changed in place.
        is_recorded: Whether gradients were recorded.
        result: What the layer got.
    """

    source: Tensor
    version: int
    is_recorded: bool
    result: Tensor

    def is_of(self, x: Tensor) -> bool:
        """Whether another layer that is given this tensor may have the same result."""
        is_same = self.source is x and self.version == x._version
        return is_same and self.is_recorded == torch.is_grad_enabled()


class TensorGroup:
    """The processes of a stage that share its weights.

    Args:
        group: Their group.
        index: Which of them this is.
        count: Their number, T.
    """

    def __init__(self, group: Any, index: int, count: int) -> None:
        self.group, self.index, self.count = group, index, count
        self.entered: EnteredTensor | None = None

    def enter(self, x: Tensor) -> Tensor:
        """Hand the same tensor to all parts of a layer; its gradient is the sum of theirs.

        Layers that get the very same tensor, as queries, keys and values do, share one sum.
        """
        if self.entered is None or not self.entered.is_of(x):
            function: Any = _Enter
            self.entered = EnteredTensor(
                x, x._version, torch.is_grad_enabled(), function.apply(x, self)
            )
        return self.entered.result

    def forget(self) -> None:
        """Let go of the last tensor, once a pass is over."""
        self.entered = None

    def divided(self, scores: Tensor) -> DTensor:
        """Return scores of which each process has a part of the last dimension."""
        mesh = DeviceMesh.from_group(self.group, scores.device.type)
        return DTensor.from_local(scores, mesh, [Shard(-1)], run_check=False)

    def leave(self, x: Tensor) -> Tensor:
        """Return the sum over all parts."""
        function: Any = _Leave
        left: Tensor = function.apply(x, self)
        return left

    def gather(self, x: Tensor) -> Tensor:
        """Put the last dimension together from all parts."""
        function: Any = _Gather
        gathered: Tensor = function.apply(x, self)
        return gathered

    def sum(self, x: Tensor) -> Tensor:
        total = x.contiguous().clone()
        dist.all_reduce(total, group=self.group)
        return total


class _Enter(Function):
    @staticmethod
    def forward(context: Any, x: Tensor, group: TensorGroup) -> Tensor:
        context.group = group
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        return context.group.sum(gradients[0]), None


class _Leave(Function):
    @staticmethod
    def forward(_: Any, x: Tensor, group: TensorGroup) -> Tensor:
        return group.sum(x)

    @staticmethod
    def backward(_: Any, *gradients: Any) -> Any:
        return gradients[0], None


class _Gather(Function):
    @staticmethod
    def forward(context: Any, x: Tensor, group: TensorGroup) -> Tensor:
        context.group = group
        parts = [
            torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(group.count)
        ]
        dist.all_gather(parts, x.contiguous(), group=group.group)
        return torch.cat(parts, -1)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        group = context.group
        return gradients[0].chunk(group.count, -1)[group.index], None


def is_transposed(module: nn.Module) -> bool:
    """Whether a layer of GPT-2 keeps its weight in columns of outputs, unlike ``nn.Linear``."""
    return type(module).__name__ == "Conv1D"


def _weight(module: Any) -> Tensor:
    weight: Tensor = module.weight.T if is_transposed(module) else module.weight
    return weight


def _column(module: Any, group: TensorGroup, x: Tensor) -> Tensor:
    return functional.linear(group.enter(x), _weight(module), module.bias)


def _row(module: Any, group: TensorGroup, x: Tensor) -> Tensor:
    summed = group.leave(functional.linear(x, _weight(module)))
    return summed if module.bias is None else summed + module.bias


def _head(module: Any, group: TensorGroup, x: Tensor) -> Tensor:
    return group.gather(_column(module, group, x))


def _vocabulary(module: Any, group: TensorGroup, x: Tensor) -> Tensor:
    return group.divided(_column(module, group, x))


def _embedding(module: Any, group: TensorGroup, ids: Tensor) -> Tensor:
    rows = module.weight.shape[0]
    local = ids - rows * group.index
    is_here = (local >= 0) & (local < rows)
    found = functional.embedding(local.where(is_here, 0), module.weight)
    return group.leave(found * is_here.unsqueeze(-1).to(found.dtype))


FORWARDS: Mapping[Cut, Callable[[Any, TensorGroup, Tensor], Tensor]] = {
    "column": _column,
    "qkv": _column,
    "row": _row,
    "head": _head,
    "vocabulary": _vocabulary,
    "embedding": _embedding,
}


def share_weights(
    model: nn.Module, optimizer: Optimizer, group: TensorGroup, plan: Mapping[str, Cut] | None
) -> dict[str, ShardSpec]:
    """Leave this process its part of each weight that the plan names.

    Args:
        model: The model, still whole.
        optimizer: Its optimizer, which gets the parts in place of the whole weights.
        group: The processes of this stage.
        plan: How modules are cut, by patterns of their names; None for those of well-known models.

    Returns:
        How each parameter that is divided is, by its name.

    Raises:
        UnsupportedModel: The plan names no module, or one that cannot be cut like this.
    """
    wanted = KNOWN_PLAN if plan is None else plan
    unknown = [cut for cut in wanted.values() if cut not in CUTS]
    if unknown:
        raise UnsupportedModel(f"tensor_plan: {unknown[0]!r} is none of {', '.join(CUTS)}")
    chosen = choose_cuts(model, wanted, group.count, is_known=plan is None)
    specs: dict[str, ShardSpec] = {}
    parts: dict[int, nn.Parameter] = {}
    for name, cut in chosen.items():
        module: Any = model.get_submodule(name)
        for kind, spec in specs_of(module, cut).items():
            whole = getattr(module, kind, None)
            if whole is None:
                continue
            if id(whole) not in parts:
                part = spec.part(whole.detach(), group.index, group.count).clone()
                parts[id(whole)] = nn.Parameter(part, requires_grad=whole.requires_grad)
            setattr(module, kind, parts[id(whole)])
            specs[f"{name}.{kind}"] = spec
        module.forward = partial(FORWARDS[cut], module, group)
    if not specs:
        raise UnsupportedModel(
            "no module has a name that says how its weights can be shared: pass it, as in"
            ' job.prepare(..., tensor_plan={"*.up": "column", "*.down": "row"}), or set'
            " limits.layout.tensor to 1"
        )
    for parent in {name.rpartition(".")[0] for name in chosen}:
        divide_heads(parent, model.get_submodule(parent), group.count)
    for options in optimizer.param_groups:
        options["params"] = [parts.get(id(each), each) for each in options["params"]]
    return specs


def choose_cuts(
    model: nn.Module, plan: Mapping[str, Cut], count: int, *, is_known: bool
) -> dict[str, Cut]:
    """Return how each layer is cut that a plan names.

    Args:
        model: The model, still whole.
        plan: How modules are cut, by patterns of their names.
        count: Processes of a stage.
        is_known: Whether the plan is of well-known names. Then a vocabulary stays whole that
            cannot be divided, or is tied to a layer that stays whole.

    Raises:
        UnsupportedModel: One cannot be cut like this.
    """
    chosen: dict[str, Cut] = {}
    for name, module in model.named_modules():
        cut = next((each for pattern, each in plan.items() if fnmatchcase(name, pattern)), None)
        if cut is None:
            continue
        try:
            refuse_indivisible(name, module, cut, count)
        except UnsupportedModel:
            if is_known and cut in VOCABULARIES:
                continue
            raise
        chosen[name] = cut
    users: dict[int, list[str]] = {}
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            users.setdefault(id(parameter), []).append(name)
    for tied in users.values():
        whole = [name for name in tied if name not in chosen]
        if not whole or len(whole) == len(tied):
            continue
        cut_too = [name for name in tied if name in chosen]
        if not is_known:
            raise UnsupportedModel(
                f"{cut_too[0]} and {whole[0]} have the same weights, and tensor_plan cuts only one"
                " of them: name both, or neither"
            )
        for name in cut_too:
            del chosen[name]
    return chosen


def specs_of(module: nn.Module, cut: Cut) -> dict[str, ShardSpec]:
    """Return how the parameters of a layer are divided, by their names in it."""
    specs = dict(SPECS[cut])
    if is_transposed(module):
        specs["weight"] = replace(specs["weight"], dim=1 - specs["weight"].dim)
    return specs


def divide_heads(name: str, module: Any, count: int) -> None:
    """Let a module whose layers are cut count the heads that are left; raises UnsupportedModel."""
    for attribute in COUNTS_OF_HEADS:
        heads = getattr(module, attribute, None)
        if not isinstance(heads, int):
            continue
        if heads % count:
            raise UnsupportedModel(
                f"{name} has {heads} of {attribute}, which {count} processes cannot share: set"
                f" limits.layout.tensor to a divisor of {heads}"
            )
        setattr(module, attribute, heads // count)


def refuse_indivisible(name: str, module: nn.Module, cut: Cut, count: int) -> None:
    """Raise UnsupportedModel for a module that so many processes cannot share."""
    wanted = nn.Embedding if cut == "embedding" else nn.Linear
    is_layer = wanted is nn.Linear and is_transposed(module)
    if not isinstance(module, wanted) and not is_layer:
        raise UnsupportedModel(
            f"tensor_plan cuts {name} as {cut}, and it is {type(module).__qualname__}, no"
            f" {wanted.__name__}: leave it out of the plan"
        )
    spec = specs_of(module, cut)["weight"]
    weight: Any = module.weight
    size = weight.shape[spec.dim]
    if size % (spec.blocks * count):
        raise UnsupportedModel(
            f"{name} has {size} {'rows' if spec.dim == 0 else 'columns'}, which {count} processes"
            f" cannot share: set limits.layout.tensor to a divisor of {size // spec.blocks}"
        )
