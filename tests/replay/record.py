"""Record norms, timings and losses of small real runs, for the replay tests.

Needs PyTorch; one CPU thread, about a minute. From the repository's root::

    python tests/replay/record.py tests/replay/data
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


@dataclass(frozen=True, slots=True)
class Recipe:
    """One run: its configuration and optimizer, and how often a lone worker splits its batch."""

    workers: int
    global_batch: int
    learning_rate: float
    momentum: float
    iterations: int
    split_every: int = 0
    seed: int = 0

    @property
    def name(self) -> str:
        optimizer = "momentum" if self.momentum else "plain"
        return f"k{self.workers}-b{self.global_batch}-{optimizer}-lr{self.learning_rate:g}"

    def shards(self, iteration: int) -> int:
        splits = self.workers == 1 and self.split_every and iteration % self.split_every == 0
        return 2 if splits else self.workers


RECIPES = (
    Recipe(4, 64, 0.01, 0.9, 900),
    Recipe(4, 256, 0.02, 0.9, 700),
    Recipe(2, 32, 0.02, 0.0, 1000),
    Recipe(2, 128, 0.05, 0.0, 1000),
    Recipe(1, 64, 0.02, 0.9, 1000, split_every=2),
    Recipe(1, 32, 0.05, 0.0, 1000, split_every=4),
)


def record(recipe: Recipe) -> dict[str, object]:
    """Train on scikit-learn's digits with virtual workers and return the columns of every step."""
    torch.manual_seed(recipe.seed)
    model = digits_network()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=recipe.learning_rate, momentum=recipe.momentum
    )
    batches = shuffled_batches(recipe)
    rows = [
        train_step(model, optimizer, *next(batches), shards=recipe.shards(iteration))
        for iteration in range(recipe.iterations)
    ]
    columns = {
        name: [four_digits(row[name]) for row in rows] for name in rows[0] if name != "shards"
    }
    return {
        "recipe": asdict(recipe),
        "iteration": list(range(recipe.iterations)),
        "shards": [row["shards"] for row in rows],
        **columns,
    }


def digits_network(channels: int = 16) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, 2 * channels, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * channels * 16, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def shuffled_batches(recipe: Recipe) -> Iterator[tuple[Tensor, Tensor]]:
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target)
    generator = torch.Generator().manual_seed(1000 + recipe.seed)
    size = recipe.global_batch
    while True:
        order = torch.randperm(len(images), generator=generator)
        for start in range(0, len(images) - size + 1, size):
            chosen = order[start : start + size]
            yield images[chosen], labels[chosen]


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, *, shards: int
) -> dict[str, float]:
    """One iteration; the shards run one after another, so the slowest stands for compute."""
    parameters = list(model.parameters())
    gradients, losses, spans = [], [], []
    for images, labels in zip(x.chunk(shards), y.chunk(shards), strict=True):
        began = time.perf_counter()
        loss = cross_entropy(model(images), labels)
        gradients.append(torch.autograd.grad(loss, parameters))
        spans.append(time.perf_counter() - began)
        losses.append(loss.item())
    began = time.perf_counter()
    mean = [torch.stack(parts).mean(0) for parts in zip(*gradients, strict=True)]
    reduced = time.perf_counter() - began
    for parameter, gradient in zip(parameters, mean, strict=True):
        parameter.grad = gradient
    optimizer.step()
    applied = time.perf_counter() - began
    return {
        "shards": shards,
        "local_norm_sq": sum(norm_sq(shard) for shard in gradients) / shards,
        "mean_norm_sq": norm_sq(mean),
        "compute_time": max(spans),
        "sync_time": reduced if shards > 1 else 0.0,
        "step_time": max(spans) + applied,
        "loss": sum(losses) / shards,
    }


def norm_sq(gradients: tuple[Tensor, ...] | list[Tensor]) -> float:
    return sum(gradient.square().sum().item() for gradient in gradients)


def four_digits(value: float) -> float:
    return float(f"{value:.4g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    torch.set_num_threads(1)
    for recipe in RECIPES:
        path = folder / f"{recipe.name}.json"
        path.write_text(json.dumps(record(recipe), separators=(",", ":")) + "\n")
        print(f"{path} {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
