"""Workload: what a benchmark trains, the same in every process that trains it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW, Optimizer

from tests.bench import example
from tests.bench.resnet import ResNet18
from tests.bench.turn import SEED


class Workload(Protocol):
    """A model, its optimizer and its data.

    Attributes:
        size: Samples in its data set.
        model: What is trained.
        optimizer: What trains it.
    """

    size: int
    model: nn.Module
    optimizer: Optimizer

    def loss(self, network: nn.Module, indices: Tensor) -> Tensor:
        """Return the loss of the model, or of what wraps it, over these samples."""


@dataclass
class Gpt:
    """The GPT of docs/examples with its text and AdamW; 0.8 million parameters."""

    def __post_init__(self) -> None:
        script = example.load("gpt")
        self.size = script.WINDOWS
        self.model: nn.Module = script.GPT()
        self.optimizer: Optimizer = AdamW(self.model.parameters(), lr=script.LEARNING_RATE)
        self.text, _ = script.load_text()
        self.starts, self.cut = script.spread(self.text, script.WINDOWS), script.cut

    def loss(self, network: nn.Module, indices: Tensor) -> Tensor:
        windows = self.cut(self.text, self.starts[indices])
        scores = network(windows[:, :-1])
        return cross_entropy(scores.flatten(0, 1), windows[:, 1:].flatten())


@dataclass
class Pictures:
    """ResNet18 on made-up pictures with SGD; 11.2 million parameters."""

    side: int = 32
    size: int = 4096

    def __post_init__(self) -> None:
        self.model: nn.Module = ResNet18()
        self.optimizer: Optimizer = SGD(self.model.parameters(), lr=0.001, momentum=0.9)
        generator = torch.Generator().manual_seed(SEED)
        shape = (256, 3, self.side, self.side)
        self.pictures = torch.randn(shape, generator=generator)
        self.labels = torch.randint(0, 10, (256,), generator=generator)

    def loss(self, network: nn.Module, indices: Tensor) -> Tensor:
        places = indices % len(self.labels)
        return cross_entropy(network(self.pictures[places]), self.labels[places])


@dataclass
class Digits:
    """The CNN of docs/examples with momentum; 27 thousand parameters."""

    def __post_init__(self) -> None:
        script = example.load("digits")
        self.dataset, _ = script.load_data()
        self.size = len(self.dataset)
        self.model: nn.Module = script.build_model()
        self.optimizer: Optimizer = SGD(self.model.parameters(), lr=0.001, momentum=0.9)

    def loss(self, network: nn.Module, indices: Tensor) -> Tensor:
        images, labels = self.dataset[indices]
        return cross_entropy(network(images), labels)


@dataclass
class HeavyPictures(Pictures):
    """ResNet18 with AdamW: 134 MB of weights and optimizer state."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.optimizer = AdamW(self.model.parameters(), lr=0.0001)


RESIZED: Mapping[str, Callable[[], Workload]] = {"digits": Digits, "ResNet18": HeavyPictures}
WORKLOADS: Mapping[str, Callable[[], Workload]] = {"GPT": Gpt, "ResNet18": Pictures}
