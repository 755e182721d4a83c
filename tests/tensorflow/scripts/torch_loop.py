"""A loop of Keras on PyTorch in DistributedDataParallel; prints the last bit of the weights.

Its arguments: ``plain``, ``scaled`` for an optimizer that scales the loss, or ``accumulated`` for
one that steps every second time; and a file for the gradients of each step, if any.
"""

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

LOCAL_BATCH, STEPS = 8, 12
KIND = sys.argv[1] if len(sys.argv) > 1 else "plain"
GRADIENTS = sys.argv[2] if len(sys.argv) > 2 else None


def loss_of(scores, labels):
    return torch.nn.functional.cross_entropy(scores, labels)


def flat(tensors):
    return np.concatenate([each.detach().numpy().ravel() for each in tensors])


dist.init_process_group("gloo")
rank = dist.get_rank()
keras.utils.set_random_seed(0)
layers = [keras.layers.Dense(16, activation="relu"), keras.layers.Dense(3)]
model = keras.Sequential([keras.layers.InputLayer((6,)), *layers])
accumulate = {"gradient_accumulation_steps": 2} if KIND == "accumulated" else {}
optimizer = keras.optimizers.Adam(0.01, clipnorm=1.0, **accumulate)
if KIND == "scaled":
    optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=1024.0)
parallel = DistributedDataParallel(model)

numbers = np.random.default_rng(1 + rank)
seen = []
for _ in range(STEPS):
    inputs = torch.tensor(numbers.normal(size=(LOCAL_BATCH, 6)).astype("float32"))
    labels = (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0)
    if GRADIENTS:  # not through DDP, and into no parameter
        values = [each.value for each in model.trainable_variables]
        seen.append(flat(torch.autograd.grad(loss_of(model(inputs), labels), values)))
    parallel.zero_grad()
    optimizer.scale_loss(loss_of(parallel(inputs), labels)).backward()
    variables = model.trainable_variables
    with torch.no_grad():
        optimizer.apply([each.value.grad for each in variables], variables)
if GRADIENTS:
    np.save(f"{GRADIENTS}.{rank}.npy", np.stack(seen))
if rank == 0:
    weights = flat(each.value for each in model.variables)
    print("weights", weights.tobytes().hex()[:64], float(np.sum(np.abs(weights))), flush=True)
dist.destroy_process_group()
os._exit(0)  # PyTorch sometimes aborts as the interpreter ends
