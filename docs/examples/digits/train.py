"""Train a small CNN on scikit-learn's handwritten digits, alone or as a Scavenger job.

An ordinary PyTorch script; these are the lines that make it elastic::

    with worker_agent.session() as job:
        job.prepare(model, optimizer)
        for indices in job.batches(len(dataset), global_batch=BATCH, epochs=EPOCHS, seed=SEED):

``python train.py`` runs it alone; ``job.yaml`` says what Scavenger needs to know.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import TensorDataset

import worker_agent

SEED = 0
BATCH = 8
EPOCHS = 120
LEARNING_RATE = 0.00012  # at batch 8; a job scales it with its batch
GOAL = 0.97
EVALUATE_EVERY = 2000  # samples
CHANNELS = 24
BLOCKS = 6


def main() -> None:
    """Train until the validation accuracy reaches the goal."""
    torch.manual_seed(SEED)
    dataset, validation = load_data()
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    accuracy, evaluated = 0.0, 0

    with worker_agent.session() as job:
        job.prepare(model, optimizer)
        for indices in job.batches(
            len(dataset),
            global_batch=BATCH,
            epochs=EPOCHS,
            seed=SEED,
            until=lambda: accuracy >= GOAL,
        ):
            images, labels = dataset[indices]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            job.log(loss=loss)
            if job.is_leader and job.samples - evaluated >= EVALUATE_EVERY:
                accuracy, evaluated = evaluate(model, validation), job.samples
                job.log(accuracy=accuracy)
        if job.is_leader:
            epochs = job.samples / len(dataset)
            print(f"validation accuracy {accuracy:.3f} after {epochs:.1f} epochs")


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Return 1437 images to train on and 360 to validate with, the same ones every time."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    labels = torch.tensor(digits.target)
    train, validation = train_test_split(
        range(len(labels)), test_size=360, stratify=labels, random_state=0
    )
    return (
        TensorDataset(images[train], labels[train]),
        TensorDataset(images[validation], labels[validation]),
    )


def build_model() -> nn.Sequential:
    """Return a stack of convolutions: much to compute, little to synchronise."""
    return nn.Sequential(
        *convolution(1),
        *(layer for _ in range(BLOCKS - 1) for layer in convolution(CHANNELS)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(CHANNELS, 10),
    )


def convolution(channels: int) -> tuple[nn.Module, ...]:
    """Return one block; it normalises each image by itself, so the batch does not matter."""
    return nn.Conv2d(channels, CHANNELS, 3, padding=1), nn.GroupNorm(8, CHANNELS), nn.ReLU()


def evaluate(model: nn.Module, validation: TensorDataset) -> float:
    """Return the share of validation images that the model recognises."""
    images, labels = validation.tensors
    with torch.no_grad():
        guesses = torch.cat([model(part).argmax(dim=1) for part in images.split(120)])
    return int((guesses == labels).sum()) / len(labels)


if __name__ == "__main__":
    main()
