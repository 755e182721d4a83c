"""A model that is traced and cut computes what it did, with the same weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from worker_agent.errors import UnsupportedModel
from worker_agent.pytorch.layouts.chain import find_chain
from worker_agent.pytorch.layouts.traced import trace_chain

WIDTH, TOKENS = 8, 11


class Attention(nn.Module):
    """A block with a way around it, whose queries, keys and values are one tuple for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm(x)).chunk(3, dim=-1)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        left: Tensor = x + self.out(mixed)
        return left


class Transformer(nn.Module):
    """No chain of modules: it adds positions and a constant, and has an optional argument."""

    scale: Tensor

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, WIDTH), nn.Embedding(16, WIDTH)
        self.layers = nn.ModuleList(Attention() for _ in range(layers))
        self.head = nn.Linear(WIDTH, TOKENS)
        self.register_buffer("scale", torch.linspace(0.5, 2, WIDTH))

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1])) + torch.linspace(0, 1, WIDTH)
        for layer in self.layers:
            x = layer(x)
        scores: Tensor = self.head(x * self.scale)
        return scores if targets is None else functional.cross_entropy(scores, targets)


class Convolutions(nn.Module):
    """Activations change in place, as in a ResNet."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(3, 3, 3, padding=1) for _ in range(layers))
        self.relu, self.head = nn.ReLU(inplace=True), nn.Linear(3, TOKENS)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            out = layer(x)
            out += x
            x = self.relu(out)
        scores: Tensor = self.head(x.mean((2, 3)))
        return scores


def inputs_of(model: nn.Module, samples: int) -> Tensor:
    if isinstance(model, Convolutions):
        return torch.randn(samples, 3, 5, 5)
    return torch.randint(0, TOKENS, (samples, 6))


def gradients(model: nn.Module, call: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    model.zero_grad()
    call(x).square().mean().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@given(st.sampled_from([Transformer, Convolutions]), st.integers(1, 4), st.integers(1, 5))
def test_parts_of_a_traced_model_compute_what_the_model_does(
    kind: Callable[[int], nn.Module], layers: int, samples: int
) -> None:
    model = kind(layers)
    chain = find_chain(model, None)
    assert len(chain) > layers
    assert all(any(True for _ in part.parameters()) for part in chain)
    listed = [id(p) for part in chain for p in part.parameters()]
    assert sorted(listed) == sorted(id(p) for p in model.parameters()), "each in one part"

    def composed(x: Tensor) -> Tensor:
        """Call the parts as stages do: each input is a leaf of its own."""
        return reduce(lambda value, part: part(value.clone()), chain, x)

    x = inputs_of(model, samples)
    mine, theirs = gradients(model, composed, x), gradients(model, model, x)
    assert all(torch.equal(*pair) for pair in zip(mine, theirs, strict=True))
    for part in chain:  # no stage may change in place what it was sent
        value = x if x.dtype is torch.int64 else x.clone().requires_grad_()
        x = part(value).detach()
        x = x.requires_grad_() if x.is_floating_point() else x


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y if y.sum() > 0 else -y


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(self.layer(x), 0.5, training=self.training)


class Scaling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * torch.full((4,), 2.0 if self.training else 1.0)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Branching(), "Branching cannot be traced, .*control flow.*blocks="),
        (Dropping(), "Dropping does something else while it trains .* outside of its modules"),
        (Scaling(), "Scaling does something else while it trains .* outside of its modules"),
    ],
)
def test_what_cannot_be_traced_is_refused_with_what_to_pass(model: nn.Module, why: str) -> None:
    model.train(mode=False)
    with pytest.raises(UnsupportedModel, match=why):
        trace_chain(model)
    assert not model.training
