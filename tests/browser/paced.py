"""A training script whose iterations take as long as a law says, however busy the computer is.

Sleeping costs no processor, so the curve of the job is smooth and the same on every computer. An
iteration sleeps for its samples, which workers share, and for itself, which they do not: two
workers are the faster configuration and one is the cheaper one, on a busy computer too. The
gradients are real.
"""

from __future__ import annotations

import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import worker_agent

SAMPLES, FEATURES = 4096, 16
SECONDS_PER_SAMPLE = 0.001
SECONDS_PER_ITERATION = 0.02


def main() -> None:
    """Train until the job has enough of it; the loss is NaN from the iteration NAN_FROM on."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    inputs = torch.randn(SAMPLES, FEATURES)
    targets = inputs @ torch.randn(FEATURES, 1) + torch.randn(SAMPLES, 1)
    model = nn.Linear(FEATURES, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    nan_from = int(os.environ.get("NAN_FROM", "1000000000"))
    with worker_agent.session() as job:
        job.prepare(model, optimizer)
        indices = job.batches(SAMPLES, 16, epochs=1)
        for x, y in DataLoader(TensorDataset(inputs, targets), batch_sampler=indices):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            time.sleep(SECONDS_PER_ITERATION + SECONDS_PER_SAMPLE * len(x))
            optimizer.step()
            job.log(loss=loss if job.iteration < nan_from else float("nan"))


if __name__ == "__main__":
    main()
