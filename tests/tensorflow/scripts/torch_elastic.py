"""A loop of Keras on PyTorch that tells its state before and after each step until a file ``end``.

Its arguments: ``ddp``, or ``alone`` for a loop without a process group; and a file for a checkpoint
of its own, if any. Each start writes a line of JSON per step to a file of its own.
"""

import json
import os
import sys
import time

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

LOCAL_BATCH = int(os.environ.get("SCAVENGER_LOCAL_BATCH", "8"))
OWN = sys.argv[2] if len(sys.argv) > 2 else None


def state_of(variables):
    return np.concatenate([np.ravel(each.numpy()).astype("float32") for each in variables])


rank, workers = 0, 1
if sys.argv[1] == "ddp":
    dist.init_process_group("gloo")
    rank, workers = dist.get_rank(), dist.get_world_size()
keras.utils.set_random_seed(int(time.time()))  # no start begins where another one did
layers = [keras.layers.Dense(16, activation="relu"), keras.layers.Dense(2)]
model = keras.Sequential([keras.layers.InputLayer((6,)), *layers])
model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)), "mse")
optimizer = model.optimizer
if OWN and os.path.exists(OWN):
    model = keras.models.load_model(OWN)
    optimizer = model.optimizer
parallel = DistributedDataParallel(model) if sys.argv[1] == "ddp" else model
variables = model.trainable_variables
numbers = np.random.default_rng(1 + rank)

name = f"{os.environ.get('SCAVENGER_GENERATION', '0')}-{rank}-{os.getpid()}.jsonl"
with open(name, "w", buffering=1) as file:
    while not os.path.exists("end"):
        inputs = torch.tensor(numbers.normal(size=(LOCAL_BATCH, 6)).astype("float32"))
        model.zero_grad()
        loss = torch.nn.functional.cross_entropy(parallel(inputs), (inputs[:, 0] > 0).long())
        optimizer.scale_loss(loss).backward()
        before = state_of([*model.variables, *optimizer.variables]) if optimizer.built else None
        with torch.no_grad():
            optimizer.apply([each.value.grad for each in variables], variables)
        told = {
            "generation": int(os.environ.get("SCAVENGER_GENERATION", "0")),
            "iteration": int(optimizer.iterations),
            "replicas": workers,
            "rank": rank,
            "before": None if before is None else before.tobytes().hex(),
            "after": state_of([*model.variables, *optimizer.variables]).tobytes().hex(),
        }
        print(json.dumps(told), file=file)
        if OWN and rank == 0 and told["iteration"] % 10 == 0:
            model.save(OWN)
        time.sleep(0.02)
os._exit(0)  # PyTorch sometimes aborts as the interpreter ends
