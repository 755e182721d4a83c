"""Trains in many ways beside the agent's hooks, and writes down what each iteration really did."""

import json
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.integration.reads import Reads

ITERATIONS = 5
WAYS = (
    "plain",
    "buckets",
    "views",
    "views with a hook",
    "unused",
    "compressed",
    "built in",
    "static",
    "scaled",
    "overflowing",
    "accumulated",
    "accumulated views",
)


class Network(nn.Module):
    """Three layers, one of them perhaps idle."""

    def __init__(self, is_idle: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.idle, self.last = nn.Linear(20, 64), nn.Linear(64, 64), nn.Linear(64, 5)
        self.is_idle = is_idle

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(inputs))
        return self.last(hidden if self.is_idle else torch.tanh(self.idle(hidden)))


def gradient(model: nn.Module, batches: list[torch.Tensor]) -> torch.Tensor:
    """Return this rank's own gradient, by hand."""
    loss = sum(model(batch).square().mean() / len(batches) for batch in batches)
    parameters = list(model.parameters())
    grads = torch.autograd.grad(loss, parameters, allow_unused=True)
    pairs = zip(parameters, grads, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in pairs])


def truth(local: torch.Tensor) -> dict[str, float]:
    """Return both norms that the agent should find."""
    local = local.double()
    local_norm_sq, mean = local.square().sum(), local.clone()
    for tensor in (local_norm_sq, mean):
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size()
    return {"local_norm_sq": local_norm_sq.item(), "mean_norm_sq": mean.square().sum().item()}


def batch_device() -> str:
    return torch.get_default_device().type


def wrap(way: str) -> tuple[nn.Module, DistributedDataParallel]:
    model = Network(is_idle=way == "unused")
    ddp = DistributedDataParallel(
        model,
        find_unused_parameters=way == "unused",
        gradient_as_bucket_view="views" in way,
        static_graph=way == "static",
        bucket_cap_mb=0.004 if way == "buckets" else None,
    )
    if way in ("compressed", "views with a hook"):
        ddp.register_comm_hook(None, fp16_compress_hook)
    if way == "built in":
        ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    return model, ddp


def train(way: str, generator: torch.Generator) -> list[dict]:
    model, ddp = wrap(way)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    is_scaled = way in ("scaled", "overflowing")
    scaler = torch.amp.GradScaler(batch_device(), enabled=is_scaled, init_scale=1024.0)
    passes = 3 if way.startswith("accumulated") else 1
    told = []
    for iteration in range(ITERATIONS):
        batches = [torch.randn(8, 20, generator=generator) * 3 for _ in range(passes)]
        if way == "overflowing" and iteration == 2 and dist.get_rank() == 1:
            batches[0][0] = torch.inf
        expected = truth(gradient(model, batches))
        before = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer.zero_grad()
        with Reads() as reads:
            for batch in batches:
                with nullcontext() if batch is batches[-1] else ddp.no_sync():
                    scaler.scale(ddp(batch).square().mean() / passes).backward()
            if not is_scaled:  # the scaler itself reads
                nn.utils.clip_grad_norm_(ddp.parameters(), 0.1)
                optimizer.step()
        if is_scaled:
            scaler.step(optimizer)
            scaler.update()
        is_applied = not all(map(torch.equal, before, model.parameters()))
        told.append({"way": way, **expected, "reads": reads.seen, "is_applied": is_applied})
    return told


def train_sharded(generator: torch.Generator) -> list[dict]:
    twin, model = Network(), Network()
    fully_shard(model.first)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    told = []
    for _ in range(ITERATIONS):
        batch = torch.randn(8, 20, generator=generator)
        local = gradient(twin, [batch])
        expected = truth(local)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        for mine, sharded in zip(twin.parameters(), model.parameters(), strict=True):
            mine.data.copy_(sharded.full_tensor())
        told.append({"way": "sharded", **expected, "reads": [], "is_applied": True})
    return told


def main() -> None:
    torch.set_num_threads(1)
    device = sys.argv[2] if len(sys.argv) > 2 else "cpu"
    torch.set_default_device(device)
    dist.init_process_group("gloo")
    generator = torch.Generator(device).manual_seed(dist.get_rank())
    told = [each for way in WAYS for each in train(way, generator)]
    if device == "cpu":  # gloo has no reduce-scatter for a GPU
        told += train_sharded(generator)
    if dist.get_rank() == 0:
        with open(sys.argv[1], "w") as file:
            json.dump(told, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
