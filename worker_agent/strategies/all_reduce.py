"""Data-parallel training by all-reduce on PyTorch, over generation-numbered process groups.

The groups are raw: the default group of ``torch.distributed`` stays the script's own. Each worker
serves a small store; a generation meets at its leader's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import ProcessGroup, ProcessGroupGloo
from torch.optim import Optimizer

from scavenger.protocol import Directive, Member
from worker_agent.errors import Broken
from worker_agent.sampler import Indices
from worker_agent.strategies.reducer import COLUMNS, Pass, Reducer
from worker_agent.strategies.scaled_steps import ScaledSteps
from worker_agent.strategies.state import TrainingState
from worker_agent.strategies.strategy import Clock, Slice, Tally, Words

MEET = timedelta(seconds=20)  # all members are there; one may still die in this moment
NEVER = timedelta(days=1)  # collectives are waited for in slices, and given up by decision
PUSH = timedelta(seconds=2)
POLL = 0.005
ENDING = 5.0

DIRECTIVE = TypeAdapter(Directive)


class AllReduce:
    """Averages gradients over a generation of workers and hands the state to newcomers."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        host: str,
        micro_batches: int,
        is_abandoned: Callable[[], bool],
        is_superseded: Callable[[int], bool],
    ) -> None:
        self.is_superseded = is_superseded
        self.leaving: list[threading.Thread] = []
        self.optimizer = optimizer
        self.steps = ScaledSteps(optimizer)
        self.state = TrainingState(model, optimizer)
        self.reducer = Reducer(
            model.parameters(), micro_batches=micro_batches, is_abandoned=is_abandoned
        )
        self.host = host
        self.own_store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=MEET)
        self.leader_store = self.own_store
        self.group: ProcessGroup | None = None
        self.is_void = False
        self.last: tuple[Pass, Tensor] | None = None
        self.agreed: Tally | None = None
        model.register_forward_pre_hook(self._forward_starts)
        optimizer.register_step_pre_hook(self._guard_step)

    @property
    def address(self) -> str:
        """``host:port`` of this worker's store."""
        return f"{self.host}:{self.own_store.port}"

    def called(self) -> Directive | None:
        """Return the newest Directive a leader pushed into this worker's store."""
        if not self.own_store.check(["called"]):
            return None
        return DIRECTIVE.validate_json(self.own_store.get("called"))

    def push(self, directive: Directive, members: tuple[str, ...]) -> None:
        """Put the Directive where newcomers look, then where this generation's members will."""
        content = DIRECTIVE.dump_json(directive).decode()
        try:
            for address in members:
                store_at(address, PUSH).set("called", content)
            own = store_at(self.address, PUSH)
            own.set(f"directive/{directive.generation}", content)
        except (RuntimeError, OSError) as error:
            raise Broken(f"a newcomer does not answer: {error}") from error

    def told(self, generation: int) -> Directive:
        """Return the Directive the leader has put into its store before announcing it."""
        try:
            return DIRECTIVE.validate_json(self.leader_store.get(f"directive/{generation}"))
        except (RuntimeError, OSError) as error:
            raise Broken(f"the leader is gone: {error}") from error

    def join(self, directive: Directive, rank: int, clock: Clock, *, is_new: bool) -> Clock:
        """Form the generation, agree on the most advanced member, and take its state."""
        self._leave()
        workers = directive.config.workers
        self.leader_store = self.own_store
        if workers > 1:
            try:
                self.group = self._meet(directive, rank)
                clock = self._adopt(self.group, rank, clock, is_new=is_new)
            except (RuntimeError, OSError) as error:
                raise Broken(f"generation {directive.generation}: {error}") from error
        self.reducer.regroup(self.group, rank, workers)
        return clock

    def begin(self, part: Slice, words: Words) -> None:
        """Prepare for one forward and backward pass."""
        self.is_void = not part.is_last
        self.reducer.begin(part, words)

    def end(self) -> bool:
        """Close the iteration and keep what it said until the next one has ended."""
        measured = self.reducer.end()
        if measured.failure is not None:
            self._leave()  # closes the connections, so that the others fail at once too
            return False
        self.agreed = self._read()
        self.last = (measured, self.reducer.message())
        return True

    def tally(self) -> Tally | None:
        """Return what was agreed one iteration ago, without waiting for the device."""
        return self.agreed

    def survivors(self, directive: Directive) -> tuple[Member, ...] | None:
        """Return who is left of a generation that broke; None leaves it to the controller."""
        return None

    def scale_learning_rate(self, factor: float) -> None:
        """Let the steps from now on use the script's learning rates times this factor."""
        self.steps.factor = factor

    def to_batch(self, indices: Indices) -> Tensor:
        """Return indices as an int64 tensor on the host."""
        return torch.from_numpy(indices)

    def _leave(self) -> None:
        """Drop the group beside training: it joins its threads, for long if a member hangs.

        Works that were never waited for keep the group alive, so they go with it.
        """
        parked: list[object] = [self.group, self.reducer.measured, self.last]
        self.group = self.last = self.agreed = None
        self.reducer.measured = Pass()
        self.reducer.regroup(None, 0, 1)
        self.leaving = [thread for thread in self.leaving if thread.is_alive()]
        self.leaving.append(threading.Thread(target=parked.clear, daemon=True))
        self.leaving[-1].start()

    def close(self) -> None:
        """Leave the group, and give its threads time to end before the process does."""
        self._leave()
        for thread in self.leaving:
            thread.join(ENDING)

    def _forward_starts(self, *_: Any) -> None:
        if torch.is_grad_enabled():
            self.reducer.forward_starts()

    def _guard_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Make the step of an incomplete or failed iteration do nothing: no gradient, no step."""
        self.reducer.complete()
        if self.is_void or self.reducer.measured.failure is not None:
            optimizer.zero_grad(set_to_none=True)

    def _meet(self, directive: Directive, rank: int) -> ProcessGroup:
        """Wait at the leader's store until all members are there, then build the group.

        Raises:
            Broken: A newer generation was announced meanwhile.
        """
        generation, workers = directive.generation, directive.config.workers
        self.leader_store = self._reach(directive, rank)
        store = PrefixStore(f"generation/{generation}", self.leader_store)
        store.set(f"here/{rank}", "")
        everyone = [f"here/{place}" for place in range(workers)]
        while not store.check(everyone):
            self._give_up_if_superseded(generation)
        gloo: Any = ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=self.host)]
        options._timeout = MEET
        group = gloo(store, rank, workers, options)
        group._set_default_timeout(NEVER)
        met: ProcessGroup = group
        return met

    def _reach(self, directive: Directive, rank: int) -> TCPStore:
        """Connect to the leader's store, however long the leader takes to serve it."""
        while rank != 0:
            try:
                store = store_at(directive.members[0].address, PUSH)
            except (RuntimeError, OSError):
                self._give_up_if_superseded(directive.generation)
            else:
                store.set_timeout(MEET)
                return store
        return self.own_store

    def _give_up_if_superseded(self, generation: int) -> None:
        if self.is_superseded(generation):
            raise Broken(f"generation {generation} is superseded")
        time.sleep(POLL)

    def _adopt(self, group: ProcessGroup, rank: int, clock: Clock, *, is_new: bool) -> Clock:
        """Take the state of the most advanced member; nothing travels when all are equal."""
        mine = torch.tensor([-1 if is_new else clock.iteration])
        everyone = [torch.zeros_like(mine) for _ in range(group.size())]
        group.allgather([everyone], [mine]).wait()
        iterations = [int(theirs) for theirs in everyone]
        if len(set(iterations)) == 1 and iterations[0] >= 0:
            return clock
        source = max(range(len(iterations)), key=lambda place: (iterations[place], -place))
        return self.state.broadcast(group, rank, source, clock)

    def _read(self) -> Tally | None:
        if self.last is None:
            return None
        measured, message = self.last
        rows = [dict(zip(COLUMNS, row, strict=True)) for row in message.tolist()]
        leader, mean = rows[0], measured.mean_norm_sq
        compute_times = [row["compute_time"] for row in rows]
        return Tally(
            announced=int(leader["announced"]),
            is_over=bool(leader["is_over"]),
            leaving=tuple(rank for rank, row in enumerate(rows) if row["is_leaving"]),
            learning_rate_factor=leader["learning_rate_factor"],
            shards=measured.shards,
            local_norm_sq=sum(row["local_norm_sq"] for row in rows)
            if measured.shards > 1
            else None,
            mean_norm_sq=None if mean is None else mean.item(),
            compute_time=max(compute_times),
            previous_sync_time=min(row["previous_sync_time"] for row in rows),
            mean_compute_time=sum(compute_times) / len(rows),
            fastest_compute_time=min(compute_times),
        )


def store_at(address: str, timeout: timedelta) -> TCPStore:
    """Connect to the store another worker serves."""
    host, port = address.rsplit(":", 1)
    return TCPStore(host, int(port), is_master=False, timeout=timeout)
