"""Task: what virtual workers train, and when it counts as learned."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, assert_never

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

try:
    from tests.paper.networks import (
        Convolutions,
        Examples,
        Network,
        OptimizerName,
        Perceptron,
        TrainedNetwork,
        Transformer,
    )
except ImportError as missing:
    raise ImportError(
        "virtual workers train real networks with PyTorch: run `pip install 'scavenger[torch]'`"
    ) from missing

ALPHABET = 48
CONTEXT = 16
TEXT_BYTES = 1_000_000
WINDOWS = 16_384  # an epoch: windows spread evenly over the text
HELD_OUT_WINDOWS = 384


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A network, what it learns from, and the recipe it is trained by.

    Attributes:
        name: Short name, as in tables.
        network: What is trained.
        examples: What it learns from; all of them once are an epoch.
        held_out: What the metric is measured on.
        metric: Share of held-out examples recognised, or their mean loss in nats.
        goal: Value of the metric at which training is finished.
        evaluate_every: Samples between two looks at the metric.
        optimizer: How the weights follow the gradient.
        learning_rate: Learning rate at the reference batch.
        reference_batch: Global batch in samples that the learning rate was chosen for.
    """

    name: str
    network: Network
    examples: Examples
    held_out: Examples
    metric: Literal["accuracy", "loss"]
    goal: float
    evaluate_every: int
    optimizer: OptimizerName
    learning_rate: float
    reference_batch: int

    def trainee(self, seed: int) -> TrainedNetwork:
        """Return the network before its first iteration."""
        return TrainedNetwork(self.network, self.examples, self.optimizer, seed)

    def evaluate(self, trainee: TrainedNetwork) -> float:
        """Measure the metric."""
        match self.metric:
            case "accuracy":
                return trainee.accuracy(self.held_out)
            case "loss":
                return trainee.loss(self.held_out)
            case _:
                assert_never(self.metric)

    def is_reached(self, value: float) -> bool:
        """Tell whether a value of the metric meets the goal."""
        return value >= self.goal if self.metric == "accuracy" else value <= self.goal


def digits_cnn() -> Task:
    """Handwritten digits, a small convolutional network, 95 % of held-out images recognised."""
    examples, held_out = digits()
    return Task(
        name="digits_cnn",
        network=Convolutions(side=8, channels=(12, 24, 32), classes=10),
        examples=examples,
        held_out=held_out,
        metric="accuracy",
        goal=0.95,
        evaluate_every=1437,
        optimizer="sgd",
        learning_rate=0.03,
        reference_batch=64,
    )


def digits_mlp() -> Task:
    """Handwritten digits, a network of dense layers, 94 % of held-out images recognised."""
    examples, held_out = digits()
    return Task(
        name="digits_mlp",
        network=Perceptron((64, 64, 32, 10)),
        examples=examples,
        held_out=held_out,
        metric="accuracy",
        goal=0.94,
        evaluate_every=1437,
        optimizer="sgd",
        learning_rate=0.02,
        reference_batch=64,
    )


def characters() -> Task:
    """The next character of source text, a transformer of one block, a goal for held-out loss."""
    examples, held_out = text_windows()
    return Task(
        name="characters",
        network=Transformer(characters=ALPHABET, context=CONTEXT, width=16),
        examples=examples,
        held_out=held_out,
        metric="loss",
        goal=2.25,
        evaluate_every=2048,
        optimizer="adam",
        learning_rate=0.006,
        reference_batch=64,
    )


TASKS = {"digits_cnn": digits_cnn, "digits_mlp": digits_mlp, "characters": characters}


@cache
def digits() -> tuple[Examples, Examples]:
    """Return 1437 images to train on and 360 held out, each at five positions.

    As they come, the images are too few: networks learn them by heart, and whether the last ones
    held out are recognised is luck.
    """
    data = load_digits()
    images = (data.images / 8 - 1).astype(np.float32)
    train, held_out = train_test_split(
        range(len(images)), test_size=360, stratify=data.target, random_state=0
    )
    classes = data.target.astype(np.int64)
    return shifted(images[train], classes[train]), shifted(images[held_out], classes[held_out])


def shifted(images: npt.NDArray[np.float32], classes: npt.NDArray[np.int64]) -> Examples:
    """Add every image moved by one pixel to each side, the way round the edge."""
    moves = [(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0)]
    moved = [np.roll(images, move, axis=(1, 2)) for move in moves]
    return Examples(np.concatenate(moved), np.tile(classes, len(moves)))


@cache
def text_windows() -> tuple[Examples, Examples]:
    """Return windows of the Python standard library's own source; its last twentieth is held out.

    Every character of a window has a class, the character that follows it.
    """
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = encode(b"".join(path.read_bytes() for path in files)[:TEXT_BYTES])
    held_out = len(text) // 20
    return cut(text[:-held_out], WINDOWS), cut(text[-held_out:], HELD_OUT_WINDOWS)


def encode(source: bytes) -> npt.NDArray[np.int64]:
    """Number the characters, the most frequent first; the rare ones share the last number."""
    raw = np.frombuffer(source, dtype=np.uint8)
    frequent = np.argsort(-np.bincount(raw, minlength=256), kind="stable")[: ALPHABET - 1]
    numbers = np.full(256, ALPHABET - 1, dtype=np.int64)
    numbers[frequent] = np.arange(len(frequent))
    return numbers[raw]


def cut(text: npt.NDArray[np.int64], count: int) -> Examples:
    """Cut this many windows, spread evenly over the text."""
    starts = np.arange(count) * (len(text) - CONTEXT - 1) // count
    windows = text[starts[:, None] + np.arange(CONTEXT + 1)]
    return Examples(windows[:, :-1].copy(), windows[:, 1:].copy())
