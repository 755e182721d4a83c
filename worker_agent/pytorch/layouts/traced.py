"""`trace_chain`: cuts an unmodified model wherever a single tensor passes.

The model is traced by ``torch.fx``: calls of its modules and operations become a graph, of any
batch. Between two of them it can be cut if one value alone is needed later.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node, Tracer

from worker_agent.errors import UnsupportedModel

IN_PLACE = (operator.iadd, operator.isub, operator.imul, operator.itruediv)


class OneArgument(nn.Module):
    """A model that is called with its input alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Any) -> Any:
        return self.model(x)


def trace_chain(model: nn.Module) -> list[nn.Module]:
    """Return modules of one argument each whose composition is the model; they share its weights.

    Raises:
        UnsupportedModel: The model cannot be traced; the message says why.
    """
    root = OneArgument(model)
    graph = trace(root)
    pieces = [GraphModule(root, piece) for piece in cut_graph(root, graph)]
    return join_pieces(pieces)


def trace(root: OneArgument) -> Graph:
    """Return what a call of the model does; raises UnsupportedModel."""
    kind, was_training = type(root.model).__qualname__, root.model.training
    found: list[Graph] = []
    try:
        for is_training in (True, False):
            root.train(is_training)
            found.append(Tracer().trace(root))
    except Exception as error:  # the model's own code may raise anything on a traced value
        raise UnsupportedModel(
            f"{kind} cannot be traced, so it cannot be cut into stages by itself ({error}):"
            f" {GIVE_BLOCKS}"
        ) from error
    finally:
        root.train(was_training)
    training, evaluating = found
    if not is_same(root, training, evaluating):
        raise UnsupportedModel(
            f"{kind} does something else while it trains than while it is evaluated, outside of its"
            f" modules, and a traced model does the same in both: {GIVE_BLOCKS}"
        )
    return training


def is_same(root: nn.Module, one: Graph, other: Graph) -> bool:
    """Whether two graphs of a model do the same; each has names of its own for constants."""
    constants = [
        [getattr(root, str(node.target)) for node in graph.nodes if is_constant(node)]
        for graph in (one, other)
    ]
    texts = [CONSTANT.sub("constant", str(graph)) for graph in (one, other)]
    if texts[0] != texts[1]:
        return False
    return all(torch.equal(a, b) for a, b in zip(*constants, strict=True))


def is_constant(node: Node) -> bool:
    """Whether a node is a tensor that the model's code has made while it was traced."""
    return node.op == "get_attr" and CONSTANT.fullmatch(str(node.target)) is not None


CONSTANT = re.compile(r"_tensor_constant\d+")
GIVE_BLOCKS = (
    "pass its parts in order, as in job.prepare(model, optimizer, loss=loss,"
    " blocks=[model.embedding, *model.blocks, model.head])"
)


def cut_graph(root: nn.Module, graph: Graph) -> Iterator[Graph]:
    """Yield the parts of a graph between the places where it can be cut."""
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
    source = next(node for node in graph.nodes if node.op == "placeholder")
    (result,) = next(node for node in graph.nodes if node.op == "output").args
    part: list[Node] = []
    for place, node in enumerate(nodes):
        part.append(node)
        if node is result or place + 1 == len(nodes):
            yield copy_part(source, part, result)
            return
        crossing = values_needed([source, *nodes[: place + 1]], nodes[place + 1 :], result)
        if crossing == [node] and is_tensor_that_stays(root, node):
            yield copy_part(source, part, node)
            source, part = node, []


def values_needed(before: Sequence[Node], after: Sequence[Node], result: Any) -> list[Node]:
    """Return the values that are computed before a place and used after it."""
    later = {id(node) for node in after}
    return [
        node for node in before if node is result or any(id(user) in later for user in node.users)
    ]


def is_tensor_that_stays(root: nn.Module, node: Node) -> bool:
    """Whether a value is one tensor that no operation after it changes in place."""
    for user in node.users:
        is_item = user.target is operator.getitem
        is_module = user.op == "call_module" and getattr(
            root.get_submodule(str(user.target)), "inplace", False
        )
        is_method = user.op == "call_method" and str(user.target).endswith("_")
        is_option = bool(user.kwargs.get("inplace")) or user.target in IN_PLACE
        if is_item or is_module or is_method or is_option:
            return False
    return True


def copy_part(source: Node, part: Sequence[Node], result: Node) -> Graph:
    """Return a graph of one argument that computes a part of another graph."""
    copied = Graph()
    known = {source: copied.placeholder("x")}

    def find(node: Node) -> Node:
        if node not in known:  # a parameter or buffer, which each part has where it needs it
            known[node] = copied.node_copy(node, find)
        return known[node]

    for node in part:
        known[node] = copied.node_copy(node, find)
    copied.output(find(result))
    return copied


def join_pieces(pieces: Sequence[nn.Module]) -> list[nn.Module]:
    """Join pieces without weights to one that has some, so that each stage can have weights."""
    groups: list[list[nn.Module]] = [[]]
    for piece in pieces:
        has_weights = any(True for _ in piece.parameters())
        group = groups[-1]
        if has_weights and any(True for each in group for _ in each.parameters()):
            groups.append(group := [])
        group.append(piece)
    return [nn.Sequential(*group) if len(group) > 1 else group[0] for group in groups]
