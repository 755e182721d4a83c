"""Digits by Downpour SGD: every worker at its own pace, each pass of the loop written down."""

import json
import os
import time

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from worker_agent.settings import read_settings
from worker_agent.training.asynchronous import AsynchronousSession

SAMPLES = 1437
EVALUATE_EVERY = 10


def problem() -> tuple[Tensor, Tensor]:
    """Return all images and labels in an order of no meaning; the last 360 are to validate with."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(1))
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    return images[order], torch.tensor(digits.target)[order]


def network() -> nn.Module:
    """Return a small CNN."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def main() -> None:
    """Train until told to stop."""
    torch.set_num_threads(1)
    images, labels = problem()
    model = network()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    settings = read_settings()
    pace = float(os.environ.get(f"PACE_{settings.worker}", "0"))
    with (
        open(f"{settings.worker}.jsonl", "w", buffering=1) as out,
        AsynchronousSession(settings) as job,
    ):
        job.prepare(model, optimizer)
        for turn, indices in enumerate(job.batches(SAMPLES, 32, epochs=1, seed=9)):
            out.write(json.dumps({"at": time.monotonic(), "indices": indices.tolist()}) + "\n")
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[indices]), labels[indices])
            loss.backward()
            optimizer.step()
            job.log(loss=loss.item())
            time.sleep(pace)
            if job.is_leader and turn % EVALUATE_EVERY == 0:
                with torch.no_grad():
                    guesses = model(images[SAMPLES:]).argmax(dim=1)
                job.log(accuracy=(guesses == labels[SAMPLES:]).float().mean().item())


if __name__ == "__main__":
    main()
