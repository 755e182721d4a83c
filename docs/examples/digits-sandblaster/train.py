"""Train a model on images of digits by L-BFGS, whose vectors lie on parameter servers.

    scavenger submit job.yaml --watch

The same script trains alone: ``python train.py``.
"""

from __future__ import annotations

from functools import partial

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import worker_agent

TEST_SAMPLES = 360

digits = load_digits()
images = torch.from_numpy(digits.data).float() / 16
labels = torch.from_numpy(digits.target).long()
order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
images, labels = images[order], labels[order]
test_images, test_labels = images[:TEST_SAMPLES], labels[:TEST_SAMPLES]
images, labels = images[TEST_SAMPLES:], labels[TEST_SAMPLES:]

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
optimizer = torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe")

with worker_agent.session() as job:
    job.prepare(model, optimizer, loss=nn.functional.cross_entropy)

    def loss_of(indices: Tensor) -> Tensor:
        """Return the loss of these samples, after its backward pass."""
        optimizer.zero_grad()
        loss: Tensor = job.step(images[indices], labels[indices])
        return loss

    evaluated = -1
    # In a job each pass of the loop has one portion of the batch. The servers step.
    for indices in job.batches(len(images), global_batch=len(images), epochs=5):
        job.log(loss=optimizer.step(partial(loss_of, indices)))
        if job.is_leader and job.iteration > evaluated:
            evaluated = job.iteration
            right = job.predict(test_images).argmax(dim=1) == test_labels
            job.log(accuracy=right.double().mean().item())
            print(f"iteration {job.iteration}: accuracy {right.double().mean():.3f}")
