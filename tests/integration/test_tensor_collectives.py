"""What the processes that share weights exchange in a pass, counted: no more than must be."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.conductor import Start
from tests.integration.forked import fork

LAYERS = 3
SCRIPT = """
import json, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from worker_agent.pytorch.layouts.tensor import TensorGroup, share_weights

position, layers, is_fused = map(int, sys.argv[1:])
torch.manual_seed(0)


class Counter(TorchDispatchMode):  # PyTorch's CommDebugMode passes copies of tensors to modules
    total = 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if DTensor in types:  # it dispatches what it is made of once more
            return NotImplemented
        self.total += op.namespace in ("c10d", "_c10d_functional") and "reduce" in op.__name__
        return op(*args, **(kwargs or {}))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(8), nn.Linear(8, 8)
        self.qkv = nn.Linear(8, 24)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(8, 8) for _ in range(3))
        self.after, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        y = self.norm(x)
        parts = (self.q_proj(y), self.k_proj(y), self.v_proj(y))
        query, key, value = self.qkv(y).chunk(3, dim=-1) if is_fused else parts
        x = x + self.out(query * torch.sigmoid(key) + value)
        return x + self.down(torch.tanh(self.up(self.after(x))))


embedding, head = nn.Embedding(12, 8), nn.Linear(8, 12, bias=False)
model = nn.Sequential(embedding, *[Layer() for _ in range(layers)], nn.LayerNorm(8), head).double()
ids = torch.randint(0, 12, (4, 5))
targets = torch.randint(0, 12, (4, 5)).flatten()
cross_entropy(model(ids).flatten(0, 1), targets).backward()
whole = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

dist.init_process_group("gloo", store=dist.FileStore("store", 2), rank=position, world_size=2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
group = TensorGroup(dist.group.WORLD, position, 2)
plan = {"0": "embedding", "*.qkv": "qkv", "*_proj": "column", "*.out": "row",
        "*.up": "column", "*.down": "row", str(layers + 2): "vocabulary"}
specs = share_weights(model, optimizer, group, plan)
counts = []
with loss_parallel(), Counter() as counter:
    def count():
        counts.append(counter.total - sum(counts))
    model.zero_grad()
    scores = model(ids)
    count()
    loss = cross_entropy(scores.flatten(0, 1), targets)
    count()
    loss.backward()
    count()
apart = 0.0
for name, parameter in model.named_parameters():
    if parameter.grad is not None:
        expected = whole[name]
        if name in specs:
            expected = specs[name].part(expected, position, 2)
        apart = max(apart, float((parameter.grad - expected).abs().max()))
print(json.dumps({"counts": counts, "apart": apart}))
"""


@pytest.mark.parametrize("is_fused", [True, False])
def test_sums_are_as_few_as_the_layers_need(tmp_path: Path, *, is_fused: bool) -> None:
    """Two per layer and one for the embedding; three for the loss; as many on the way back.

    Queries, keys and values of three layers share the sum of their input's gradient.
    """
    started = []
    for position in range(2):
        command = ["-c", SCRIPT, str(position), str(LAYERS), str(int(is_fused))]
        log = tmp_path / f"{position}.log"
        started.append(fork(Start(command, tmp_path, {**os.environ}, log)))
    assert [process.wait() for process in started] == [0, 0], (tmp_path / "0.log").read_text()
    for position in range(2):
        told = json.loads((tmp_path / f"{position}.log").read_text().splitlines()[-1])
        assert told["apart"] < 1e-12
        assert told["counts"] == [2 * LAYERS + 1, 3, 2 * LAYERS + 1]
