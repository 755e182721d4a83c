"""Small real networks in training, whose shards' gradients come from one backward pass.

Weights are stacked, one copy per shard, so that one backward pass leaves one gradient per shard.
The rest of its batch does not change what a sample gives, so that how the batch is cut changes
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal, Protocol, assert_never

import numpy as np
import numpy.typing as npt
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


Indices = npt.NDArray[np.int64]
OptimizerName = Literal["sgd", "adam"]

MOMENTUM = 0.9


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Samples with the classes they belong to.

    Attributes:
        inputs: Shape (samples, ...).
        classes: Shape (samples,), or (samples, positions) where every position has a class.
    """

    inputs: npt.NDArray[Any]
    classes: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.classes)


@dataclass(frozen=True, slots=True)
class Gradients:
    """What one pass over a batch found.

    Attributes:
        mean: Gradient of the batch's mean loss, over all weights in one row.
        norms_sq: ||g_k||² of every shard.
        losses: Mean loss of every shard.
        shares: Part of the batch's samples that each shard holds; they sum to 1.
    """

    mean: Tensor
    norms_sq: Tensor
    losses: Tensor
    shares: Tensor

    @property
    def loss(self) -> float:
        """Mean loss of the batch."""
        return float(self.shares @ self.losses)

    @property
    def local_norm_sq(self) -> float:
        """Mean over shards of ||g_k||², weighted by shard size."""
        return float(self.shares @ self.norms_sq)

    @property
    def mean_norm_sq(self) -> float:
        """||ḡ||² of the batch's gradient."""
        return float(self.mean @ self.mean)


class TrainedNetwork:
    """A network's weights, with the optimizer that changes them.

    Args:
        network: What to compute.
        examples: What to learn from.
        optimizer: Gradient descent with momentum, or Adam.
        seed: Seed of the initial weights.
    """

    def __init__(
        self, network: Network, examples: Examples, optimizer: OptimizerName, seed: int
    ) -> None:
        self.network = network
        self.inputs = torch.from_numpy(examples.inputs)
        self.classes = torch.from_numpy(examples.classes)
        self.weights = initial_weights(network.shapes, seed)
        self.optimizer = build_optimizer(optimizer, self.weights)

    def gradients(self, indices: Indices, shards: int) -> Gradients:
        """Take the gradient of every shard of these examples, without learning from it.

        Args:
            indices: Which examples, in the order in which they are dealt out.
            shards: Number of consecutive parts, whose sizes differ by at most one.
        """
        places, weights, shares = shard_samples(len(indices), shards)
        chosen = torch.from_numpy(indices)[places]
        with one_thread():
            copies = self.weights.detach().expand(shards, -1).requires_grad_()
            losses = self._losses(copies, self.inputs[chosen], self.classes[chosen])
            shard_losses = (losses * weights).sum(dim=1)
            (gradients,) = torch.autograd.grad(shard_losses.sum(), copies)
            return Gradients(
                mean=shares @ gradients,
                norms_sq=torch.linalg.vector_norm(gradients, dim=1).square(),
                losses=shard_losses.detach(),
                shares=shares,
            )

    def learn(self, gradient: Tensor, learning_rate: float) -> None:
        """Take one step of the optimizer along this gradient."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.weights.grad = gradient
        with one_thread():
            self.optimizer.step()

    def accuracy(self, examples: Examples) -> float:
        """Return the share of examples whose class gets the highest score."""
        guesses = self._score(examples).argmax(dim=-1)
        return float((guesses == torch.from_numpy(examples.classes)).float().mean())

    def loss(self, examples: Examples) -> float:
        """Return the mean loss of the examples, in nats."""
        scores, classes = self._score(examples), torch.from_numpy(examples.classes)
        return float(functional.cross_entropy(scores.flatten(0, -2), classes.flatten()))

    def _score(self, examples: Examples) -> Tensor:
        with torch.no_grad(), one_thread():
            weights = split(self.weights.detach()[None], self.network.shapes)
            return self.network.scores(weights, torch.from_numpy(examples.inputs)[None])[0]

    def _losses(self, copies: Tensor, inputs: Tensor, classes: Tensor) -> Tensor:
        """Return every sample's loss, shape (shards, samples)."""
        scores = self.network.scores(split(copies, self.network.shapes), inputs)
        losses = functional.cross_entropy(
            scores.flatten(0, -2), classes.flatten(), reduction="none"
        )
        return losses.view(*classes.shape[:2], -1).mean(dim=2)


def initial_weights(shapes: Sequence[Shape], seed: int) -> Tensor:
    """Draw matrices so that activations keep their size; biases start at zero."""
    draw = torch.Generator().manual_seed(seed)
    pieces = [
        torch.randn(shape, generator=draw) / math.sqrt(shape[0])
        if len(shape) > 1
        else torch.zeros(shape)
        for shape in shapes
    ]
    return torch.cat([piece.flatten() for piece in pieces]).requires_grad_()


def build_optimizer(name: OptimizerName, weights: Tensor) -> torch.optim.Optimizer:
    """Return a fresh optimizer; its learning rate is set at every step."""
    match name:
        case "sgd":
            return torch.optim.SGD([weights], momentum=MOMENTUM)
        case "adam":
            return torch.optim.Adam([weights])
        case _:
            assert_never(name)


@lru_cache(maxsize=32)
def shard_samples(samples: int, shards: int) -> tuple[Tensor, Tensor, Tensor]:
    """Deal samples out to shards, as the agent does.

    Returns:
        Which samples each shard holds and what each counts in its shard's mean, both of shape
        (shards, largest shard); then the part of all samples that each shard holds. A smaller
        shard is filled up with a sample that counts nothing.
    """
    if not 1 <= shards <= samples:
        raise ValueError(f"{samples} samples cannot make {shards} shards")
    edges = [samples * shard // shards for shard in range(shards + 1)]
    sizes = torch.tensor([high - low for low, high in pairwise(edges)])
    column = torch.arange(int(sizes.max()))
    places = torch.tensor(edges[:-1])[:, None] + column
    weights = (column < sizes[:, None]) / sizes[:, None]
    return places.clamp(max=samples - 1), weights, sizes / samples


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one core: matrices this small gain nothing from more, and repeat exactly."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
