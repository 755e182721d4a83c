"""A crew: the workers of one job as threads of this process, with real sessions and real sockets.

A job with a few resizes takes a second or two. What matters only between processes, such as death
and forks, is not for a crew.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

import torch
from torch import Tensor, nn

from scavenger.protocol import Member, StopAtProgress
from scavenger.worker_env import WorkerEnv
from tests.conductor import Conductor
from tests.controller_double import LONG
from worker_agent.parameter_server.server import ShardServer
from worker_agent.pytorch.server_shard import TorchShard
from worker_agent.session import Session
from worker_agent.telemetry import reporter
from worker_agent.training import elastic, membership
from worker_agent.training.asynchronous import AsynchronousSession
from worker_agent.training.elastic import ElasticSession

SECRET = "between us"
SAMPLES = 240
NOW = StopAtProgress(1e-9)
# Workers train on at full speed until the controller has heard enough: let it hear at once.
INTERVALS = (
    (elastic, "PROBING_REPORT_INTERVAL"),
    (membership, "WAITING_REPORT_INTERVAL"),
    (reporter, "WAITING_REPORT_INTERVAL"),
)
STREAM = threading.Lock()  # of random numbers: all threads have the same one, a model is made alone

Script = Callable[[Session, Callable[..., None]], None]


class Classifier:
    """A small network in double precision and what it is trained on, the same on every worker.

    Attributes:
        passes: Backward passes that a batch is cut into.
    """

    def __init__(self, passes: int = 1) -> None:
        with STREAM:
            torch.manual_seed(3)
            self.model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
            generator = torch.Generator().manual_seed(5)
            self.inputs = torch.randn(SAMPLES, 6, generator=generator, dtype=torch.float64)
        self.labels = torch.arange(SAMPLES) % 3
        self.passes = passes

    def to(self, device: str) -> Self:
        """Move the network and what it is trained on to a device."""
        self.model.to(device)
        self.inputs, self.labels = self.inputs.to(device), self.labels.to(device)
        return self

    def weights(self) -> Tensor:
        return flat(self.model.parameters())

    def loss(self, indices: Tensor) -> Tensor:
        scores = self.model(self.inputs[indices])
        return nn.functional.cross_entropy(scores, self.labels[indices]) / self.passes


@dataclass
class Crew:
    """One job.

    Attributes:
        rows: What the scripts noted, by iteration.
        errors: What the scripts raised, by worker.

    Args:
        conductor: Its controller.
        script: What each worker runs: it is given its session, and a function that takes notes.
        strategy: How they train together.
    """

    conductor: Conductor
    script: Script
    strategy: Any = "all_reduce"
    servers: tuple[Member, ...] = ()
    rows: dict[int, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    errors: dict[str, BaseException] = field(default_factory=dict)
    threads: dict[str, threading.Thread] = field(default_factory=dict)

    def start(self, name: str) -> None:
        """Start a worker."""
        self.threads[name] = threading.Thread(target=self._work, args=(name,), daemon=True)
        self.threads[name].start()

    def order(self, workers: int, batch: int, iterations: int, **changes: Any) -> None:
        """Let so many workers train for so many iterations; those that are missing are started."""
        names = [f"w{number}" for number in range(workers)]
        for name in names:
            if name not in self.threads:
                self.start(name)
        facts = {"report_after": iterations, "strategy": self.strategy, "servers": self.servers}
        generation = self.conductor.order(names, batch, **facts, **changes)
        self.conductor.wait(lambda: self.errors or self._has_applied(generation, iterations))

    def play(self, workers: int, batch: int, iterations: int) -> None:
        """Let so many workers train so many iterations and end by themselves."""
        names = [f"w{number}" for number in range(workers)]
        for name in names:
            self.start(name)
        self.conductor.stop = StopAtProgress(iterations * batch / SAMPLES)
        self.conductor.order(names, batch, strategy=self.strategy, servers=self.servers)
        self._join()

    def end(self) -> None:
        """End training, and raise what a script has raised."""
        if not self.errors:
            assert self.conductor.directive is not None
            self.conductor.stop = NOW
            members = [member.worker for member in self.conductor.directive.members]
            batch = self.conductor.directive.config.global_batch
            facts = {"strategy": self.strategy, "servers": self.servers}
            self.conductor.order(members, batch, **facts)
        self._join()

    def _join(self) -> None:
        for name, thread in self.threads.items():
            thread.join(0 if self.errors else LONG)
            assert self.errors or not thread.is_alive(), f"{name} does not end"
        for error in self.errors.values():
            raise error

    def _has_applied(self, generation: int, iterations: int) -> bool:
        reports = [r for r in self.conductor.reports if r.progress.generation == generation]
        return sum(len(report.steps) for report in reports) >= iterations

    def _work(self, name: str) -> None:
        settings = WorkerEnv(
            controller=f"http://127.0.0.1:{self.conductor.server.server_port}",
            token="token",
            job="job",
            worker=name,
            prepaid=600,
            strategy=self.strategy,
            job_secret=SECRET,
        )
        kind = AsynchronousSession if self.strategy == "downpour" else ElasticSession
        try:
            with kind(settings) as job:

                def note(**facts: Any) -> None:
                    now = job.directive
                    assert now is not None
                    turn = now.generation, now.revision
                    self.rows[job.iteration].append({"worker": name, "turn": turn, **facts})

                self.script(job, note)
        except BaseException as error:  # noqa: BLE001 the test raises it
            self.errors[name] = error
            with self.conductor.news:
                self.conductor.news.notify_all()


@contextmanager
def crew(
    directory: Path,
    script: Script,
    *,
    strategy: str = "all_reduce",
    servers: int = 2,
    split_every: int = 0,
) -> Iterator[Crew]:
    """Open a job; its controller and its servers end with it."""
    count = 0 if strategy == "all_reduce" else servers
    serving = [ShardServer("127.0.0.1", SECRET, TorchShard.make) for _ in range(count)]
    for server in serving:
        threading.Thread(target=server.serve, daemon=True).start()
    members = tuple(Member(f"s{n}", server.address) for n, server in enumerate(serving))
    conductor = Conductor(
        directory, [], dataset_size=SAMPLES, split_every=split_every, purpose="probe"
    )
    with ExitStack() as hasty:
        for module, name in INTERVALS:
            hasty.enter_context(patch.object(module, name, 0.02))
        with conductor:
            yield Crew(conductor, script, strategy, members)
    for server in serving:
        server.close()


def assert_as_alone(
    made: Crew,
    weights: Callable[[], Tensor],
    train: Callable[[Tensor, int], None],
    *,
    tolerance: float = 1e-10,
) -> int:
    """Compare what the crew noted with one process that trains on the same batches.

    The script notes ``indices`` and ``weights``, those before the iteration.

    Args:
        made: What has trained.
        weights: Returns the weights of the one process.
        train: Trains it on a batch, in an iteration.
        tolerance: Largest difference of a weight.

    Returns:
        How many iterations were compared.
    """
    iterations = range(max(made.rows))  # the last may have been cut short
    for iteration in iterations:
        newest = max(row["turn"] for row in made.rows[iteration])
        rows = [row for row in made.rows[iteration] if row["turn"] == newest]
        for row in rows:
            difference = float((row["weights"] - weights()).abs().max())
            assert difference <= tolerance, f"{difference} before iteration {iteration}"
        train(torch.cat([row["indices"] for row in rows]), iteration)
    return len(iterations)


def flat(parameters: Sequence[Tensor] | Iterator[Tensor]) -> Tensor:
    """Return copies of all values as one vector."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in parameters]).clone()
