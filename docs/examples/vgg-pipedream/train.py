"""Train a small network in the form of VGG, whose stages are an asynchronous pipeline.

    scavenger submit job.yaml --watch

The same script trains alone: ``python train.py``.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn

import worker_agent

TEST_SAMPLES = 360
EVALUATE_EVERY = 20

digits = load_digits()
images = torch.from_numpy(digits.images).float().unsqueeze(1) / 16
labels = torch.from_numpy(digits.target).long()
order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
images, labels = images[order], labels[order]
test_images, test_labels = images[:TEST_SAMPLES], labels[:TEST_SAMPLES]
images, labels = images[TEST_SAMPLES:], labels[TEST_SAMPLES:]

torch.manual_seed(0)
model = nn.Sequential(
    nn.Sequential(nn.Conv2d(1, 24, 3, padding=1), nn.ReLU()),
    nn.Sequential(nn.Conv2d(24, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
    nn.Sequential(nn.Conv2d(24, 48, 3, padding=1), nn.ReLU()),
    nn.Sequential(nn.Conv2d(48, 48, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
    nn.Sequential(nn.Flatten(), nn.Linear(192, 512), nn.ReLU()),  # most weights, little to compute
    nn.Sequential(nn.Linear(512, 512), nn.ReLU()),
    nn.Linear(512, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)

with worker_agent.session() as job:
    job.prepare(model, optimizer, loss=nn.functional.cross_entropy)
    for indices in job.batches(len(images), global_batch=32, epochs=40):
        optimizer.zero_grad()
        loss = job.step(images[indices], labels[indices])
        optimizer.step()
        job.log(loss=loss)
        # Every process that shares the leader's model takes part in an evaluation.
        if job.evaluates and job.iteration % EVALUATE_EVERY == 0:
            right = job.predict(test_images).argmax(dim=1) == test_labels
            job.log(accuracy=right.double().mean())
            if job.is_leader:
                print(f"iteration {job.iteration}: accuracy {right.double().mean():.3f}")
