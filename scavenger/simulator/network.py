"""Networks that virtual workers train, written over a stack of weights: one copy per shard.

One backward pass then leaves one gradient per shard. A sample is treated by itself, whatever
else is in its batch, so that how the batch is cut changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

Shape = tuple[int, ...]


class Network(Protocol):
    """What is computed from weights and inputs; it holds no weights itself."""

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Shape of every weight: matrices are (inputs, outputs), biases (outputs,)."""

    def scores(self, weights: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """Score every class.

        Args:
            weights: As in ``shapes``, each with the shards as a dimension in front.
            inputs: Samples of every shard, shape (shards, samples, ...).

        Returns:
            Scores before the softmax, shape (shards, samples, ..., classes).
        """


@dataclass(frozen=True, slots=True)
class Perceptron:
    """Dense layers with tanh between them.

    Attributes:
        widths: Values per sample, from the input over every layer to the classes.
    """

    widths: tuple[int, ...]

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """A matrix and a bias per layer."""
        return tuple(shape for pair in pairwise(self.widths) for shape in dense_shapes(*pair))

    def scores(self, weights: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """Score every class; inputs of shape (shards, samples, height, width)."""
        x = dense(inputs.flatten(2), weights[0], weights[1])
        for layer in range(2, len(weights), 2):
            x = dense(x.tanh(), weights[layer], weights[layer + 1])
        return x


@dataclass(frozen=True, slots=True)
class Convolutions:
    """A 3 x 3 convolution, then 2 x 2 ones that halve the image, then a dense layer.

    Attributes:
        side: Pixels along an edge of the image, which has one channel.
        channels: Channels after every convolution.
        classes: Classes to tell apart.
    """

    side: int
    channels: tuple[int, ...]
    classes: int

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """A matrix over each patch and a bias per convolution, and those of the dense layer."""
        pixels = (self.side >> (len(self.channels) - 1)) ** 2
        return (
            *dense_shapes(9, self.channels[0]),
            *(s for low, high in pairwise(self.channels) for s in dense_shapes(4 * low, high)),
            *dense_shapes(pixels * self.channels[-1], self.classes),
        )

    def scores(self, weights: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """Score every class; inputs of shape (shards, samples, side, side)."""
        padded = functional.pad(inputs, (1, 1, 1, 1))
        patches = padded.unfold(2, 3, 1).unfold(3, 3, 1).flatten(4)
        x = dense(patches, weights[0], weights[1]).tanh()
        for layer in range(2, len(weights) - 2, 2):
            x = dense(quarters(x), weights[layer], weights[layer + 1]).tanh()
        return dense(x.flatten(2), weights[-2], weights[-1])


@dataclass(frozen=True, slots=True)
class Transformer:
    """One block of causal attention and a two-layer network over characters.

    Attributes:
        characters: Size of the alphabet.
        context: Characters it looks back at most.
        width: Values per position.
    """

    characters: int
    context: int
    width: int

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Embeddings, then matrices and biases in the order of use."""
        width = self.width
        return (
            (self.characters, width),
            (self.context, width),
            *dense_shapes(width, 3 * width),
            *dense_shapes(width, width),
            *dense_shapes(width, 4 * width),
            *dense_shapes(4 * width, width),
            *dense_shapes(width, self.characters),
        )

    def scores(self, weights: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """Score every next character; inputs of shape (shards, samples, context)."""
        characters, positions, *layers = weights
        x = embed(inputs, characters) + positions[:, None]
        x = x + dense(attend(dense(normalize(x), *layers[0:2])), *layers[2:4])
        x = x + dense(dense(normalize(x), *layers[4:6]).relu(), *layers[6:8])
        return dense(normalize(x), *layers[8:10])


def dense_shapes(inputs: int, outputs: int) -> tuple[Shape, Shape]:
    """Return the shapes of a dense layer's matrix and bias."""
    return (inputs, outputs), (outputs,)


def dense(x: Tensor, matrix: Tensor, bias: Tensor) -> Tensor:
    """Apply every shard's matrix and bias to the last dimension of its samples."""
    outputs = torch.baddbmm(bias[:, None], x.flatten(1, -2), matrix)
    return outputs.view(*x.shape[:-1], -1)


def quarters(x: Tensor) -> Tensor:
    """Gather 2 x 2 patches of images of shape (shards, samples, side, side, channels)."""
    shards, samples, side, _, channels = x.shape
    patches = x.reshape(shards, samples, side // 2, 2, side // 2, 2, channels)
    return patches.transpose(3, 4).flatten(4)


def embed(tokens: Tensor, tables: Tensor) -> Tensor:
    """Look every shard's tokens up in its own table."""
    shards, rows = tables.shape[:2]
    offsets = torch.arange(0, shards * rows, rows)[:, None, None]
    return functional.embedding(tokens + offsets, tables.flatten(0, 1))


def attend(projected: Tensor) -> Tensor:
    """Let every position look at itself and at earlier ones."""
    query, key, value = projected.flatten(0, 1).chunk(3, dim=-1)
    seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    return seen.view(*projected.shape[:3], -1)


def normalize(x: Tensor) -> Tensor:
    """Give every position mean 0 and variance 1."""
    return functional.layer_norm(x, x.shape[-1:])


def split(stacked: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
    """Cut rows of all weights into stacks of each, as views."""
    pieces = torch.split(stacked, [math.prod(shape) for shape in shapes], dim=1)
    return [
        piece.reshape(len(stacked), *shape) for piece, shape in zip(pieces, shapes, strict=True)
    ]
