"""What each execution stack is worth on this machine: throughput, compiling, switches.

A GPT, a ResNet and an MLP train through a session's own strategy, so switches and rehearsals are
those of a job. Each figure is printed when it is measured. Ratios are within one run; on a CPU they
are of processor seconds, on a GPU of its own time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from scavenger.stack import EAGER, Stack
from tests.alone import attach_alone
from tests.bench.resnet import Block
from worker_agent.frameworks import NO_FLAGS, WHOLE_BATCH
from worker_agent.pytorch.all_reduce import AllReduceStrategy
from worker_agent.pytorch.stacks.code_cache import CACHE_VARIABLE
from worker_agent.pytorch.stacks.compiled import repeated_blocks

STACKS = ("eager", "fused", "bf16+fused", "channels_last+fused", "compiled+fused")
EVERY_STACK = (*STACKS, "bf16+compiled+fused", "compiled_whole+fused")
BATCHES = (4, 16, 64)
STEPS, WARM_UP = 12, 3
MAX_SWITCH, MAX_FROM_BUNDLE, MIN_EARLY_SHARE = 0.05, 0.1, 0.8
EARLY = 0.75  # part of a backward pass


class GptBlock(nn.Module):
    """Attention and a small network, as in GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, values: Tensor) -> Tensor:
        batch, length, width = values.shape
        mixed = self.queries(self.first(values))
        split = mixed.view(batch, length, 3, self.heads, width // self.heads)
        attended = nn.functional.scaled_dot_product_attention(
            *split.permute(2, 0, 3, 1, 4), is_causal=True
        )
        values = values + self.merge(attended.transpose(1, 2).reshape(batch, length, width))
        return values + self.network(self.second(values))


class Gpt(nn.Module):
    """A small GPT."""

    def __init__(self, layers: int = 6, width: int = 128, length: int = 64) -> None:
        super().__init__()
        self.words = nn.Embedding(256, width)
        self.places = nn.Parameter(torch.zeros(1, length, width))
        self.blocks = nn.ModuleList([GptBlock(width, 4) for _ in range(layers)])
        self.head = nn.Linear(width, 256)

    def forward(self, words: Tensor) -> Tensor:
        values = self.words(words) + self.places
        for block in self.blocks:
            values = block(values)
        scores: Tensor = self.head(values)
        return scores.flatten(0, 1)


class MlpBlock(nn.Module):
    """Two layers beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)
        )

    def forward(self, values: Tensor) -> Tensor:
        return values + self.network(values)


def mlp() -> nn.Module:
    """Return a network of equal blocks."""
    return nn.Sequential(nn.Linear(64, 256), *[MlpBlock(256) for _ in range(6)], nn.Linear(256, 10))


def resnet() -> nn.Module:
    """Return a narrow ResNet of ten layers."""
    blocks = [Block(16, 16, 1), Block(16, 16, 1), Block(16, 32, 2), Block(32, 32, 1)]
    stem = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


Batch = tuple[Tensor, Tensor]


def words(batch: int) -> Batch:
    """Return a batch for the GPT."""
    return torch.randint(0, 256, (batch, 64)), torch.randint(0, 256, (batch * 64,))


def pictures(batch: int) -> Batch:
    """Return a batch for the ResNet."""
    return torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))


def rows(batch: int) -> Batch:
    """Return a batch for the MLP."""
    return torch.randn(batch, 64), torch.randint(0, 10, (batch,))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Batch]]] = {
    "GPT": (Gpt, words),
    "ResNet": (resnet, pictures),
    "MLP": (mlp, rows),
}


class Training:
    """A model that trains through a session's strategy."""

    def __init__(self, name: str, device: str) -> None:
        torch.manual_seed(0)
        make, self.batch = MODELS[name]
        self.device = torch.device(device)
        self.model = make().to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.strategy: AllReduceStrategy = attach_alone(self.model, self.optimizer)

    def step(self, batch: Batch) -> None:
        """Run the loop body of a script once."""
        inputs, labels = (each.to(self.device) for each in batch)
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(inputs), labels).backward()
        self.optimizer.step()

    def train(self, batch: Batch) -> None:
        """Train for one iteration."""
        self.strategy.begin(WHOLE_BATCH, NO_FLAGS)
        self.step(batch)
        if not self.strategy.end():
            raise RuntimeError("an iteration of one worker failed")

    def use(self, stack: str, batches: Sequence[int]) -> str:
        """Change to a stack and rehearse it; returns why it is left out, if it is."""
        self.strategy.rehearsals.use(Stack.parse(stack))
        rehearsal = self.strategy.rehearsals.due(batches)
        if rehearsal is not None:
            with rehearsal:
                self.step(self.batch(max(batches)))
        refused = [check for check in self.strategy.rehearsals.checks if check.stack == stack]
        return next((check.refusal for check in refused if check.refusal), "")

    def seconds(self, batch: int) -> float:
        """Return the median seconds of an iteration: of the processor, or of the device."""
        data = self.batch(batch)
        for _ in range(WARM_UP):
            self.train(data)
        found = []
        for _ in range(STEPS):
            before = self.now()
            self.train(data)
            found.append(self.now() - before)
        return median(found)

    def now(self) -> float:
        """Return the time that counts here."""
        if self.device.type == "cpu":
            return time.process_time()
        torch.cuda.synchronize(self.device)
        return time.perf_counter()


@dataclass(frozen=True, slots=True)
class Row:
    """Samples per second of one stack, by batch."""

    stack: str
    throughput: dict[int, float]

    @property
    def best_batch(self) -> int:
        """The batch with which most samples are trained per second."""
        return max(self.throughput, key=lambda batch: self.throughput[batch])


def measure_stacks(console: Console, name: str, device: str, stacks: Sequence[str]) -> list[Row]:
    """Measure each stack at each batch."""
    found = []
    for stack in stacks:
        training = Training(name, device)
        try:
            before = time.perf_counter()
            why = training.use(stack, BATCHES)
            took = time.perf_counter() - before
            if why:
                console.print(f"{name} {stack}: left out, {why}")
                continue
            row = Row(stack, {batch: batch / training.seconds(batch) for batch in BATCHES})
            found.append(row)
            figures = ", ".join(f"b={b}: {row.throughput[b]:.0f}" for b in BATCHES)
            console.print(f"{name} {stack}: samples/s {figures}; rehearsed in {took:.1f} s")
            if stack != "eager":
                console.print(f"{name} {stack}: switched in {switch_seconds(training):.4f} s")
        finally:
            training.strategy.close()
    return found


def switch_seconds(training: Training) -> float:
    """Return the median seconds of a switch between the stack and eager."""
    switch, found = training.strategy.stacks, []
    stack = switch.stack
    for _ in range(3):
        for wanted in (EAGER, stack):
            before = time.perf_counter()
            switch.change(wanted)
            found.append(time.perf_counter() - before)
    return median(found)


def to_table(name: str, found: Sequence[Row]) -> Table:
    """Return the forms of the paper's tables VI to VIII for one model."""
    table = Table(title=f"{name}: speed-up over eager, fixed and tuned batch", title_justify="left")
    for head in ("stack", *(f"b={batch}" for batch in BATCHES), "best b", "tuned"):
        table.add_column(head, justify="left" if head == "stack" else "right")
    eager = found[0]
    for row in found:
        fixed = [f"{row.throughput[b] / eager.throughput[b]:.2f}" for b in BATCHES]
        tuned = row.throughput[row.best_batch] / eager.throughput[eager.best_batch]
        table.add_row(row.stack, *fixed, str(row.best_batch), f"{tuned:.2f}")
    return table


def early_shares(name: str, device: str) -> Iterator[tuple[str, float]]:
    """Yield by stack the share of gradients that are there in the first part of backward."""
    for stack in ("eager", "compiled", "compiled_whole"):
        training = Training(name, device)
        try:
            if not training.use(stack, [16]):
                yield stack, early_share(training)
        finally:
            training.strategy.close()


def early_share(training: Training) -> float:
    """Return the share of gradients that are ready in the first three quarters of backward."""
    ready: list[tuple[float, int]] = []

    def note(parameter: Tensor) -> None:
        ready.append((time.perf_counter(), parameter.numel()))

    handles = [
        parameter.register_post_accumulate_grad_hook(note)
        for parameter in training.model.parameters()
    ]
    shares = []
    for _ in range(STEPS):
        inputs, labels = training.batch(16)
        training.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(training.model(inputs), labels)
        ready.clear()
        began_at = time.perf_counter()
        loss.backward()
        length = time.perf_counter() - began_at
        early = sum(size for at, size in ready if at - began_at <= EARLY * length)
        shares.append(early / sum(size for _, size in ready))
    for handle in handles:
        handle.remove()
    return median(shares)


@dataclass(frozen=True, slots=True)
class Compilation:
    """What one rehearsal took in a process of its own: processor seconds, and seconds."""

    processor: float
    wall: float


def compile_once(name: str, stack: str, folder: Path, threads: int | None = None) -> Compilation:
    """Rehearse a stack in a new process, with a folder of compiled code."""
    environment = {**os.environ, CACHE_VARIABLE: str(folder)}
    if threads is not None:
        environment["TORCHINDUCTOR_COMPILE_THREADS"] = str(threads)
    command = [sys.executable, "-m", "tests.bench.stacks", "--once", name, stack]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    processor, wall = map(float, shown.stdout.split()[-2:])
    return Compilation(processor, wall)


def rehearse_once(name: str, stack: str) -> None:
    """Rehearse a stack, and print processor seconds, those of compilers too, and seconds."""

    training = Training(name, "cpu")
    before, began_at = sum(os.times()[:4]), time.perf_counter()
    why = training.use(stack, [16])
    wall = time.perf_counter() - began_at
    from torch._inductor.async_compile import shutdown_compile_workers

    shutdown_compile_workers()  # their time counts once they have ended
    training.strategy.close()
    if why:
        raise SystemExit(why)
    print(sum(os.times()[:4]) - before, wall)


def measure_compiling(console: Console, name: str, stack: str, threads: int) -> float:
    """Compare cold with warm and one thread with all; returns warm over cold."""
    with tempfile.TemporaryDirectory() as place:
        cold = compile_once(name, stack, Path(place, "all"))
        console.print(f"{name} {stack}: cold {cold.processor:.1f} CPU s, {cold.wall:.1f} s")
        warm = compile_once(name, stack, Path(place, "all"))
        ratio = warm.processor / cold.processor
        console.print(f"{name} {stack}: warm {warm.processor:.1f} CPU s, {ratio:.2f} of cold")
        alone = compile_once(name, stack, Path(place, "one"), threads=1)
        console.print(
            f"{name} {stack}: one thread {alone.wall:.1f} s, {alone.wall / cold.wall:.2f} of the "
            f"{cold.wall:.1f} s with {threads}"
        )
    return ratio


def main() -> int:
    """Measure, print each figure as it comes, and sum up; 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.stacks")
    parser.add_argument("--model", choices=MODELS, action="append", help="default: all")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--every", action="store_true", help="stacks that take minutes to compile")
    parser.add_argument("--once", nargs=2, metavar=("MODEL", "STACK"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.once:
        rehearse_once(*options.once)
        return 0
    console = Console(soft_wrap=True)
    missed = []
    for name in options.model or MODELS:
        blocks = list(repeated_blocks(MODELS[name][0]()))
        console.print(f"{name}: {len(blocks)} repeated blocks, on {options.device}")
        stacks = EVERY_STACK if options.every else STACKS
        if name == "ResNet" and not options.every:  # compiling it takes minutes
            stacks = tuple(stack for stack in stacks if "compiled" not in stack)
        console.print(to_table(name, measure_stacks(console, name, options.device, stacks)))
    if options.device == "cpu":
        ratio = measure_compiling(console, "GPT", "compiled+fused", os.cpu_count() or 1)
        if ratio > MAX_FROM_BUNDLE:
            missed.append(f"a rehearsal with compiled code takes {ratio:.2f} of a cold one")
    shares = dict(early_shares("GPT", options.device))
    for stack, share in shares.items():
        console.print(f"GPT {stack}: {share:.2f} of gradients in the first {EARLY:.0%} of backward")
    if shares.get("compiled", 0.0) < MIN_EARLY_SHARE * shares["eager"]:
        missed.append("compiled by block, too few gradients are ready early")
    for sentence in missed:
        console.print(f"missed: {sentence}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
