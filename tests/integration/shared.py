"""A model that several processes share: its data, and worker processes that do."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from scavenger.layout import Layout
from tests.conductor import Process, Start, spawn
from worker_agent.pytorch.layouts.sharded import local_part
from worker_agent.pytorch.layouts.stage_state import BY_ROWS
from worker_agent.pytorch.layouts.tensor import SPECS, Cut, ShardSpec

P = TypeVar("P", bound=Process)

SAMPLES, TOKENS, CLASSES, WIDTH = 96, 12, 4, 8
PLAN: dict[str, Cut] = {
    "*.tokens": "embedding",
    "*.qkv": "qkv",
    "*.out": "row",
    "*.up": "column",
    "*.down": "row",
    "*.scores": "vocabulary",
}


class Tokens(nn.Module):
    """The mean of the rows of a sample's tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        mean: Tensor = self.tokens(ids).mean(dim=1)
        return mean


class Mix(nn.Module):
    """Three parts of one layer, put together value by value, and a layer after them."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        return x + self.out(query * torch.sigmoid(key) + value)


class Pair(nn.Module):
    """Two layers behind a norm, one by columns and one by rows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Scores(nn.Module):
    """The layer of the classes, as a vocabulary's."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.scores(x)
        return scores


class Unmodified(nn.ModuleList):
    """The same blocks in a model that does not say so, and is traced to be cut."""

    def forward(self, x: Tensor) -> Tensor:
        for block in self:
            x = block(x)
        return x


def make_model(optimizer: str = "adamw") -> nn.Module:
    """Return the same model in every process; with SGD as one that is traced."""
    torch.manual_seed(3)
    kind = Unmodified if optimizer == "sgd" else lambda blocks: nn.Sequential(*blocks)
    return kind([Tokens(), Mix(), Pair(), Scores()]).double()


def find_spec(name: str, layout: Layout, plan: Mapping[str, Cut]) -> ShardSpec | None:
    """Return how a weight is divided among tensor shards; None if each has it whole."""
    module, _, kind = name.rpartition(".")
    cut = next((cut for pattern, cut in plan.items() if fnmatchcase(module, pattern)), None)
    return None if cut is None or layout.tensor == 1 else SPECS[cut].get(kind)


def own_part(name: str, whole: Tensor, position: int, layout: Layout) -> Tensor:
    """Return what one of the processes that share a weight has of it."""
    place, row = divmod(position, layout.shard)
    spec = find_spec(name, layout, PLAN)
    part = whole if spec is None else spec.part(whole, place % layout.tensor, layout.tensor)
    return BY_ROWS.part(part, row, layout.shard)


def join_weights(
    processes: Sequence[Mapping[str, Any]], layout: Layout, plan: Mapping[str, Cut]
) -> list[float]:
    """Return all weights of a model, stage by stage, from what its processes have."""
    size, joined = layout.tensor * layout.shard, []
    for low in range(0, layout.processes, size):
        stage = processes[low : low + size]
        for name in stage[0]:
            parts = [torch.tensor(each[name], dtype=torch.float64) for each in stage]
            columns = [
                BY_ROWS.whole(parts[at : at + layout.shard]) for at in range(0, size, layout.shard)
            ]
            spec = find_spec(name, layout, plan)
            joined += (columns[0] if spec is None else spec.whole(columns)).flatten().tolist()
    return joined


def own_weights(model: nn.Module) -> dict[str, list[Any]]:
    """Return what this process has of each parameter."""
    parts = {name: local_part(each) for name, each in model.named_parameters()}
    return {name: each.tolist() for name, each in parts.items()}


def make_optimizer(name: str, model: nn.Module) -> Optimizer:
    """Return an optimizer with slots, in two groups."""
    weights = [p for p in model.parameters() if p.dim() > 1]
    biases = [p for p in model.parameters() if p.dim() == 1]
    groups: Any = [{"params": weights}, {"params": biases, "weight_decay": 0.0}]
    if name == "adamw":
        return AdamW(groups, lr=0.01)
    return SGD(groups, lr=0.1, momentum=0.9)


def samples() -> tuple[Tensor, Tensor]:
    """Return inputs and labels."""
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randint(0, TOKENS, (SAMPLES, 3), generator=generator)
    return inputs, torch.randint(0, CLASSES, (SAMPLES,), generator=generator)


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss over a batch."""
    return nn.functional.cross_entropy(outputs, targets)


class WorkerProcesses:
    """The processes of one worker, as its supervisor starts them."""

    def __init__(self, processes: Sequence[Process], place: str) -> None:
        self.processes, self.place = processes, place

    def poll(self) -> int | None:
        codes = [process.poll() for process in self.processes]
        return next((code for code in codes if code), codes[0])

    def wait(self) -> int:
        code = max(process.wait() for process in self.processes)
        shutil.rmtree(self.place, ignore_errors=True)
        return code

    def kill(self) -> None:
        for process in self.processes:
            process.kill()

    def send_signal(self, number: int, /) -> None:
        self.processes[0].send_signal(number)


def start_with(
    layout: Layout, launch: Callable[[Start], Process] = spawn
) -> Callable[[Start], WorkerProcesses]:
    """Return what starts a worker with a layout, each of its processes as ``launch`` does."""
    return lambda one: WorkerProcesses(*start_processes(launch, layout, one))


def start_processes(
    launch: Callable[[Start], P], layout: Layout, one: Start
) -> tuple[list[P], str]:
    """Start the processes of a worker; returns them and the directory where they meet."""
    place = tempfile.mkdtemp(prefix="scavenger-")  # a socket's path must be short
    started = []
    for position in range(layout.processes):
        ours = {
            "SCAVENGER_LAYOUT": str(layout),
            "SCAVENGER_POSITION": str(position),
            "SCAVENGER_PROCESSES": place,
        }
        log = one.log if position == 0 else one.log.with_suffix(f".{position}.log")
        started.append(launch(replace(one, environment={**one.environment, **ours}, log=log)))
    return started, place
