"""What the agent requires of a framework; each framework inherits the contract."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scavenger.learning_rate import LearningRateScaling
from tests.crew import SAMPLES, Classifier, crew
from worker_agent.errors import UnsupportedStrategy
from worker_agent.frameworks import Framework, StrategyContext, find_framework
from worker_agent.pytorch.framework import FRAMEWORK
from worker_agent.rendezvous.rendezvous import StoreRendezvous
from worker_agent.sampler import SampleOrder, SampleRange

SEED = 7
BATCH = 12


class FrameworkContract:
    """Train a model of the framework in a job, and compare with one process.

    Attributes:
        framework: The implementation.
        strategies: Names of its strategies in lockstep.
        tolerance: Largest difference of a weight.
    """

    framework: Framework
    strategies: tuple[str, ...] = ()
    tolerance = 1e-9

    def make(self) -> tuple[Any, Any]:
        """Return a model and its optimizer, the same at each call."""
        raise NotImplementedError

    def train(self, model: Any, optimizer: Any, indices: Any) -> None:
        """Train on samples below 240, with a loss that is a mean over them."""
        raise NotImplementedError

    def weights(self, model: Any) -> np.ndarray[Any, Any]:
        """Return a copy of all weights as one vector."""
        raise NotImplementedError

    def test_it_owns_its_models_and_no_others(self) -> None:
        model, _ = self.make()
        assert find_framework(model) is self.framework
        assert not self.framework.owns(object())

    def test_a_batch_holds_the_indices_in_order(self) -> None:
        indices = np.array([3, 1, 2], dtype=np.int64)
        assert [int(each) for each in self.framework.to_batch(indices)] == [3, 1, 2]

    def test_a_number_of_python_is_not_held(self) -> None:
        assert self.framework.detach(1.5) is None

    def test_a_strategy_that_it_does_not_have_is_refused_by_name(self) -> None:
        model, optimizer = self.make()
        context = StrategyContext(
            name="telepathy",  # type: ignore[arg-type]
            model=model,
            optimizer=optimizer,
            worker="w0",
            secret="",
            should_abort=lambda: False,
        )
        rendezvous = StoreRendezvous("w0", "127.0.0.1", lambda _: False)
        try:
            with pytest.raises(UnsupportedStrategy, match="telepathy"):
                self.framework.strategy(rendezvous, context)
            with pytest.raises(UnsupportedStrategy, match="telepathy"):
                self.framework.asynchronous_strategy(context)
        finally:
            rendezvous.close()

    def test_a_job_that_grows_and_shrinks_trains_as_one_process(self, tmp_path: Path) -> None:
        for strategy in self.strategies:
            self.check_resizes(tmp_path, strategy)

    def check_resizes(self, directory: Path, strategy: str) -> None:
        lock, seen = threading.Lock(), dict[int, np.ndarray[Any, Any]]()

        def script(job: Any, note: Any) -> None:
            with lock:
                model, optimizer = self.make()
            job.prepare(model, optimizer)
            for indices in job.batches(SAMPLES, BATCH, epochs=1, seed=SEED):
                if job.is_leader:
                    seen[job.iteration] = self.weights(model)
                self.train(model, optimizer, indices)

        with crew(directory, script, strategy=strategy) as made:
            for workers in (1, 2, 1):
                made.order(workers, BATCH, 3)
            made.end()
            facts = [report.steps for report in made.conductor.reports]
        shards = {each for steps in facts for each in steps.shards}
        assert 2 in shards, "the noise of two workers is measured"
        assert all(t > 0 for steps in facts for t in steps.step_time)
        self.compare(seen)

    def compare(self, seen: dict[int, np.ndarray[Any, Any]]) -> None:
        model, optimizer = self.make()
        order = SampleOrder(SAMPLES, SEED)
        assert len(seen) >= 9
        for iteration in range(max(seen)):
            if iteration in seen:
                difference = abs(seen[iteration] - self.weights(model)).max()
                assert difference <= self.tolerance, f"{difference} before {iteration}"
            indices = order.indices(SampleRange(iteration * BATCH, BATCH))
            self.train(model, optimizer, self.framework.to_batch(indices))

    def test_the_learning_rate_follows_the_batch(self, tmp_path: Path) -> None:
        """A first step of plain gradient descent is as long as the factor says."""
        lengths = []
        for factor in (1.0, 2.0):
            moved: list[np.ndarray[Any, Any]] = []

            def script(job: Any, note: Any, moved: Any = moved) -> None:
                model, optimizer = self.make()
                job.prepare(model, optimizer)
                before = self.weights(model)
                for indices in job.batches(SAMPLES, BATCH, epochs=1, seed=SEED):
                    self.train(model, optimizer, indices)
                    if not moved:
                        moved.append(self.weights(model) - before)

            rule = LearningRateScaling("linear", round(BATCH / factor))
            with crew(tmp_path, script) as made:
                made.order(1, BATCH, 2, learning_rate=rule)
                made.end()
            lengths.append(float(np.linalg.norm(moved[0])))
        assert lengths[1] == pytest.approx(2 * lengths[0], rel=1e-6)


class TestPyTorch(FrameworkContract):
    framework = FRAMEWORK
    strategies = ("all_reduce", "parameter_server")

    def make(self) -> tuple[Any, Any]:
        self.task = Classifier()
        return self.task.model, torch.optim.SGD(self.task.model.parameters(), lr=0.1)

    def train(self, model: Any, optimizer: Any, indices: Any) -> None:
        optimizer.zero_grad()
        scores = model(self.task.inputs[indices])
        torch.nn.functional.cross_entropy(scores, self.task.labels[indices]).backward()
        optimizer.step()

    def weights(self, model: Any) -> np.ndarray[Any, Any]:
        return torch.cat([p.detach().flatten() for p in model.parameters()]).clone().numpy()

    def test_a_tensor_is_held_without_its_graph(self) -> None:
        held = self.framework.detach(torch.ones(1, requires_grad=True) * 2)
        assert held is not None
        assert held.grad_fn is None
