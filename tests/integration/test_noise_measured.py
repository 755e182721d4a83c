"""The noise that the agent's own reducer measures is that of the gradients, without a bias."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.distributed import ProcessGroupGloo
from torch.optim import SGD

from scavenger.cluster import ClusterConfig
from scavenger.measurement.noise import ShardNorms, noise_at, pool_noise
from tests.paper.tasks import digits_mlp
from worker_agent.frameworks import BatchSlice
from worker_agent.pytorch.reducer import SUMMARY_COLUMNS, Reducer
from worker_agent.sampler import SampleRange

PATIENCE = timedelta(seconds=30)
# Gradients whose |G|² is 2 and whose tr Σ is 30: φ is 15 samples.
GRADIENT = torch.tensor([1.0, -0.8, 0.6, 0.0], dtype=torch.float64)
DEVIATIONS = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
NORM_SQ, VARIANCE = 2.0, 30.0
ITERATIONS = 800


@pytest.fixture(autouse=True, scope="module")
def one_core() -> Iterator[None]:
    """Networks this small are slower on several cores, and wait for them where others compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass(frozen=True, slots=True)
class Division:
    """How the samples of an iteration are divided."""

    workers: int
    global_batch: int
    micro_batches: int = 1
    slices: int = 1


class Worker:
    """One worker whose loss is linear: the gradient of a sample is the sample itself."""

    def __init__(self, division: Division, rank: int, store: HashStore) -> None:
        self.division, self.rank = division, rank
        self.weight = nn.Parameter(torch.zeros_like(GRADIENT))
        self.reducer = Reducer(
            [self.weight], micro_batches=division.micro_batches, should_abort=lambda: False
        )
        if division.workers > 1:
            group = ProcessGroupGloo(store, rank, division.workers, PATIENCE)
            self.reducer.regroup(group, rank, division.workers)

    def iterate(self, samples: Tensor) -> ShardNorms:
        """Take one iteration's gradient; returns what rank 0 would report."""
        whole = SampleRange(0, len(samples))
        mine = whole.split(self.division.workers)[self.rank]
        parts = mine.split(self.division.slices)
        for part in parts:
            is_last = part is parts[-1]
            self.reducer.begin(
                BatchSlice(part.count / mine.count, mine.count / whole.count, is_last=is_last)
            )
            for micro in part.split(self.division.micro_batches):
                inputs = samples[micro.start : micro.start + micro.count]
                ((inputs @ self.weight).mean() / self.division.micro_batches).backward()
            if not is_last:
                self.weight.grad = None
        measured = self.reducer.end()
        assert measured.failure is None
        assert self.weight.grad is not None
        assert torch.allclose(self.weight.grad, samples.mean(dim=0))
        self.weight.grad = None
        local = float(
            self.reducer.rows_of_workers()[:, SUMMARY_COLUMNS.index("local_norm_sq")].sum()
        )
        mean = math.nan if measured.mean_norm_sq is None else float(measured.mean_norm_sq)
        return ShardNorms(measured.shards, local, mean)


def measure(division: Division) -> list[ShardNorms]:
    """Run all workers, each on a thread; returns the rows of rank 0."""
    store = HashStore()
    draw = torch.Generator().manual_seed(7)
    shape = (ITERATIONS, division.global_batch, len(GRADIENT))
    samples = GRADIENT + DEVIATIONS * torch.randn(shape, generator=draw, dtype=torch.float64)

    def work(rank: int) -> list[ShardNorms]:
        worker = Worker(division, rank, store)
        return [worker.iterate(batch) for batch in samples]

    with ThreadPoolExecutor(division.workers) as threads:
        leader, *_ = threads.map(work, range(division.workers))
    return leader


@pytest.mark.parametrize(
    "division",
    [
        Division(workers=2, global_batch=16),
        Division(workers=3, global_batch=13),
        Division(workers=2, global_batch=12, micro_batches=3),
        Division(workers=1, global_batch=25, slices=2),
        Division(workers=1, global_batch=16, micro_batches=4, slices=2),
    ],
    ids=str,
)
def test_the_pieces_a_reducer_measures_are_unbiased(division: Division) -> None:
    rows = measure(division)
    batch = division.global_batch
    shards = division.workers * division.micro_batches * division.slices
    assert {row.shards for row in rows} == {shards}
    for truth, values in (
        (NORM_SQ, [row.gradient_norm_sq for row in rows]),
        (VARIANCE, [row.gradient_variance(batch) for row in rows]),
    ):
        error = float(np.std(values)) / math.sqrt(len(rows))
        assert abs(float(np.mean(values)) - truth) <= 4 * error
        assert error <= 0.1 * truth


class Digits:
    """A network in the middle of its training, frozen."""

    def __init__(self) -> None:
        examples = digits_mlp().examples
        self.inputs = torch.from_numpy(examples.inputs).flatten(1)
        self.classes = torch.from_numpy(examples.classes)
        self.rng = np.random.default_rng(3)
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        for _ in range(100):
            optimizer.zero_grad()
            self.loss(self.draw(64)).backward()
            optimizer.step()

    def draw(self, count: int) -> Tensor:
        """Draw samples, none of them twice."""
        return torch.from_numpy(self.rng.choice(len(self.classes), count, replace=False))

    def loss(self, indices: Tensor) -> Tensor:
        scores = self.model(self.inputs[indices])
        return nn.functional.cross_entropy(scores, self.classes[indices])

    def noise(self, shards: int, batch: int, iterations: int) -> Sequence[ShardNorms]:
        """Let a reducer measure, with one accumulated pass for each shard."""
        reducer = Reducer(self.model.parameters(), micro_batches=shards, should_abort=lambda: False)
        rows = []
        for _ in range(iterations):
            reducer.begin(BatchSlice(1.0, 1.0, is_last=True))
            for part in self.draw(batch).chunk(shards):
                (self.loss(part) / shards).backward()
            measured = reducer.end()
            self.model.zero_grad()
            local = float(reducer.rows_of_workers()[0, SUMMARY_COLUMNS.index("local_norm_sq")])
            assert measured.mean_norm_sq is not None
            rows.append(ShardNorms(measured.shards, local, float(measured.mean_norm_sq)))
        return rows


def test_one_measured_division_predicts_the_noise_of_all_others() -> None:
    """Normalized noise is (b + φ) / (B + φ), seen on the real gradients of a frozen network."""
    digits = Digits()
    seen = pool_noise(digits.noise(shards=8, batch=128, iterations=200), 128)
    assert seen is not None
    assert seen.noise_scale is not None
    errors, normalized = [], []
    for shards, batch in product((2, 4, 16), (32, 128, 512)):
        found = pool_noise(digits.noise(shards, batch, iterations=80), batch)
        assert found is not None
        predicted = noise_at(seen.noise_scale, ClusterConfig(shards, batch))
        errors.append(abs(predicted / found.noise - 1))
        normalized.append(found.noise / shards)
    assert float(np.mean(errors)) <= 0.05
    assert max(normalized) > 2 * min(normalized)


class ChunkedWorker:
    """Parameters of two chunks, whose passes follow each other on each part of a batch."""

    def __init__(self) -> None:
        self.chunks = [nn.Parameter(torch.zeros(2, dtype=torch.float64)) for _ in range(2)]
        self.reducer = Reducer(self.chunks, micro_batches=1, should_abort=lambda: False)

    def iterate(self, parts: Tensor, *, as_shards: bool) -> tuple[float, list[Tensor]]:
        """Let gradients be the rows of the parts; returns mean_k ||g_k||², and their sum."""
        self.reducer.begin(BatchSlice(1.0, 1.0, is_last=True))
        self.reducer.expect_passes(len(parts), as_shards=as_shards, passes_per_part=2)
        for part in parts:
            for chunk, gradient in zip(self.chunks, part, strict=True):
                (chunk @ gradient).backward()
        self.reducer.end()
        kept = [chunk.grad for chunk in self.chunks if chunk.grad is not None]
        column = SUMMARY_COLUMNS.index("local_norm_sq")
        return float(self.reducer.rows_of_workers()[0, column]), [each.clone() for each in kept]


@pytest.mark.parametrize("is_zeroed", [True, False], ids=["zeroed", "removed"])
def test_passes_of_chunks_on_one_part_are_one_shard(*, is_zeroed: bool) -> None:
    worker, rng = ChunkedWorker(), torch.Generator().manual_seed(1)
    for turn in range(6):
        parts = torch.randn(3, 2, 2, generator=rng, dtype=torch.float64)
        norm_sq, kept = worker.iterate(parts, as_shards=turn % 2 == 0)
        assert torch.allclose(torch.stack(kept), parts.sum(dim=0))
        # A script divides each loss by the number of parts, so g_k is a row times 3.
        expected = float((9 * parts**2).sum(dim=(1, 2)).mean()) if turn % 2 == 0 else 0.0
        assert norm_sq == pytest.approx(expected)
        SGD(worker.chunks).zero_grad(set_to_none=not is_zeroed)


def test_a_pass_without_hooks_counts_where_gradients_were_zeroed_and_not_removed() -> None:
    weight = nn.Parameter(torch.zeros(2))
    reducer = Reducer([weight], micro_batches=1, should_abort=lambda: False)
    for _ in range(3):
        reducer.begin(BatchSlice(1.0, 1.0, is_last=True))
        reducer.expect_passes(1, as_shards=False)
        weight.grad = torch.ones(2) if weight.grad is None else weight.grad.add_(1.0)
        reducer.take_pass()
        reducer.end()
        assert weight.grad is not None
        assert weight.grad.tolist() == [1.0, 1.0]
        weight.grad.zero_()
