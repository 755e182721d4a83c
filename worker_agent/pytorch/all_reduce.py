"""`AllReduceStrategy`: data-parallel training by all-reduce, over one process group per generation.

The groups are raw: the default group of ``torch.distributed`` stays the script's own. Each
worker serves a key-value store; the members of a generation connect through their leader's.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from hashlib import blake2b
from traceback import clear_frames
from typing import Any

import torch
from pydantic import TypeAdapter
from pydantic_core import to_json
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from scavenger.protocol import Directive, Member
from scavenger.stack import Stack
from worker_agent.errors import GenerationBroken, StateRefused
from worker_agent.frameworks import (
    BatchSlice,
    ControlFlags,
    JoinRole,
    StepSummary,
    StrategyContext,
    name_columns,
)
from worker_agent.pytorch.finite_guard import FiniteGuard
from worker_agent.pytorch.optimizer_hooks import (
    FusedMomentumFix,
    LearningRateScaler,
    StepHook,
    refuse_line_search,
)
from worker_agent.pytorch.process_group import (
    GROUP_CONNECT_TIMEOUT,
    AbortableGroup,
    TorchStore,
    connect_group,
    run_abortable,
)
from worker_agent.pytorch.reducer import IterationMeasurement, Reducer
from worker_agent.pytorch.stacks.code_cache import CodeCache
from worker_agent.pytorch.stacks.rehearsal import StackRehearsal
from worker_agent.pytorch.stacks.switch import PreparedScript, StackSwitch
from worker_agent.pytorch.state import TrainingState, reseed_worker
from worker_agent.pytorch.suppressed_steps import SuppressedSteps
from worker_agent.pytorch.tensors import Strides, comparable_strides
from worker_agent.pytorch.transfer import broadcast_bytes
from worker_agent.rendezvous.rendezvous import (
    DEAD_PEER_CHECK_EVERY,
    StoreRendezvous,
    any_proven_dead,
    generation_label,
)
from worker_agent.state.progress import TrainingProgress, TrainingSnapshot
from worker_agent.transport.fork_safety import (
    Ports,
    SocketDescriptor,
    close_in_forks,
    list_sockets,
    tcp_connections,
)

log = logging.getLogger(__name__)

LEAVE_GROUP_TIMEOUT = 1.0
SPARE_CONNECTIONS = 16  # connections that other threads may make while a group is formed
_ORDERS: TypeAdapter[dict[str, Strides]] = TypeAdapter(dict[str, Strides])


class AllReduceStrategy:
    """Averages gradients over a generation of workers and hands the state to newcomers.

    Args:
        rendezvous: Where the workers find each other.
        context: The script's objects, and whom to ask while waiting.

    Raises:
        UnsupportedOptimizer: It evaluates its closure many times per step.
    """

    def __init__(self, rendezvous: StoreRendezvous, context: StrategyContext) -> None:
        model, optimizer = context.model, context.optimizer
        refuse_line_search(optimizer)
        self.rendezvous, self.restore_checkpoint = rendezvous, context.restore_checkpoint
        self.should_abort = context.should_abort
        self.leaving: list[threading.Thread] = []
        self.left_behind: list[threading.Thread] = []
        self.steps = LearningRateScaler(optimizer)
        stage = None
        if context.shared is not None:
            # PyTorch's pipelines take more than a second to load.
            from worker_agent.pytorch.layouts.stage import open_stage

            stage = open_stage(context, context.shared)
        self.stage = stage
        self.state = (
            TrainingState(model, optimizer, context.extra_state) if stage is None else stage.state
        )
        self.reducer = Reducer(
            self.state.named_parameters().values(),
            micro_batches=context.micro_batches,
            should_abort=self._should_abort_collective,
            on_work=context.on_work,
            agreement=None if stage is None else stage.agreement,
            uncounted=() if stage is None else stage.world.uncounted,
        )
        self.model_steps = None if stage is None else stage.model_steps(context, self.reducer)
        self.others: Sequence[Member] = ()
        self.looked_at = 0.0
        self.taken: TrainingProgress | None = None
        self.group: ProcessGroup | None = None
        self.forming: list[ProcessGroup] = []
        self.is_partial_slice = self.is_draining = False
        self.unread_outcome: tuple[IterationMeasurement, Tensor] | None = None
        self.previous_summary: StepSummary | None = None
        self.calls = SuppressedSteps(context.extra_state, self._counts_nothing, self._is_open)
        script = PreparedScript(model, optimizer, context.extra_state.get("scaler"))
        self.stacks = StackSwitch(script)
        self.rehearsals = StackRehearsal(
            self.stacks,
            context.extra_state,
            lambda: context.on_work(is_called_by_script=True),
            CodeCache(model, context.bundles),
        )
        self.reducer.watch_forward(model if stage is None else stage.chunks[0])
        StepHook(optimizer, self._guard_step)
        self.guard = FiniteGuard(optimizer, self._norm_of_mean)
        FusedMomentumFix(optimizer)

    def join(
        self, directive: Directive, role: JoinRole, progress: TrainingProgress, *, is_new: bool
    ) -> TrainingProgress:
        """Form the generation, agree on the most advanced member, and take its state.

        Raises:
            GenerationBroken: A member was lost meanwhile.
        """
        self._drain()
        members = directive.members
        self.others = [member for member in members if member.worker != self.rendezvous.worker]
        # Before the members compare the layouts of their weights.
        self.rehearsals.use(Stack.parse(directive.config.stack))
        group: ProcessGroup | None = None
        if self.taken is not None and (is_new or self.taken.iteration > progress.iteration):
            progress, is_new = self.taken, False  # it was for a generation that then broke
        try:
            if role.donor is not None:
                self.taken = progress = self._take_over(directive, role, progress, is_new=is_new)
            if role.rank is None:
                self._leave()
                return progress
            group = self._form("", directive, members, role.rank)
            if group is None and role.donor is None and is_new:
                progress = self.restore_checkpoint(self.state, progress)
            if group is not None and role.donor is None:
                progress = self._adopt(
                    group, role.rank, directive.generation, progress, is_new=is_new
                )
            if group is not None:
                self._compare_layouts(group, role.rank)
        except (RuntimeError, OSError) as error:
            # The frames hold the group; it must be dropped beside training, not here.
            clear_frames(error.__traceback__)
            del group
            self._leave()
            raise GenerationBroken(f"generation {generation_label(directive)}: {error}") from error
        self.taken = None
        if group is not None:
            self.forming.remove(group)
        self._leave()
        self.group = group
        self.guard.is_on = directive.nan_guard
        self.reducer.regroup(group, role.rank, len(members))
        if self.model_steps is not None:
            self.model_steps.begin_generation(directive.split_every)
        return progress

    def begin(self, part: BatchSlice, flags: ControlFlags) -> None:
        self.is_partial_slice = not part.is_last
        self.reducer.begin(part, flags)

    def end(self) -> bool:
        """Close the iteration and keep its rows until the next one has ended."""
        if self.reducer.is_incomplete:
            self.reducer.skip()
        self.calls.settle()
        measured = self.reducer.end()
        if measured.failure is not None:
            self._leave()  # closes the connections, so that the other workers fail at once too
            return False
        self.previous_summary = self._read_outcome()
        self.unread_outcome = (measured, self.reducer.rows_of_workers())
        return True

    @property
    def skipped_steps(self) -> Tensor | None:
        return self.guard.skipped

    def snapshot(self, progress: TrainingProgress) -> TrainingSnapshot:
        self._drain()
        return self.state.snapshot(progress)

    def scale_learning_rate(self, factor: float) -> None:
        self.steps.factor = factor

    def leave(self) -> None:
        self.taken = None
        self._leave()

    def _leave(self) -> None:
        """Drop the group on another thread: it joins its threads, slowly if a member hangs.

        Works that were never waited for keep the group alive, so they are dropped with it.
        """
        parked: list[object] = [
            self.group,
            *self.forming,
            self.reducer.measured,
            self.unread_outcome,
        ]
        self.group = self.unread_outcome = self.previous_summary = None
        self.forming = []
        self.reducer.measured = IterationMeasurement()
        self.reducer.regroup(None, 0, 1)
        self.leaving = [thread for thread in self.leaving if thread.is_alive()]
        self.leaving.append(threading.Thread(target=parked.clear, daemon=True))
        self.leaving[-1].start()

    def close(self) -> None:
        """Leave the group, and wait for its threads before the process ends."""
        if sys.exception() is None:  # else other processes of this worker may be gone
            self._drain()
        self._leave()
        self.rendezvous.close()
        if self.stage is not None:
            self.stage.world.close()
        deadline = time.monotonic() + LEAVE_GROUP_TIMEOUT
        for thread in self.leaving:
            thread.join(max(0.0, deadline - time.monotonic()))
        for thread in self.left_behind:  # a thread in C++ would abort the interpreter at its exit
            thread.join(GROUP_CONNECT_TIMEOUT.total_seconds())

    def _drain(self) -> None:
        """End the minibatches in flight; they count even if the script has skipped later ones."""
        if self.model_steps is None:
            return
        self.is_draining = True
        try:
            self.model_steps.drain()
        finally:
            self.is_draining = False

    def _guard_step(self, optimizer: Optimizer) -> None:
        """Let the step of an incomplete or failed iteration do nothing: no gradient, no step."""
        self.reducer.on_step()
        if self._counts_nothing():
            optimizer.zero_grad(set_to_none=True)

    def _norm_of_mean(self) -> Tensor | None:
        return None if self._counts_nothing() else self.reducer.norm_of_mean()

    def _counts_nothing(self) -> bool:
        """Whether this pass of the loop body must not count.

        It is half an iteration, one that will be redone, a rehearsal, or one whose samples some
        worker has skipped, as all workers do then so that replicas stay equal.
        """
        if self.is_draining:
            return False
        if self.rehearsals.is_open:
            return True
        is_redone = self.reducer.measured.failure is not None
        return self.is_partial_slice or is_redone or self.reducer.is_skipped_by_any()

    def _is_open(self) -> bool:
        """Whether another worker or a failure may still invalidate this iteration."""
        return self.group is not None and not self.reducer.is_averaged

    def _should_abort_collective(self) -> bool:
        """Whether the current collective will never end.

        Gloo does not always notice that a member is gone, so a long wait checks the members itself.
        """
        if self.should_abort():
            return True
        now = time.monotonic()
        if now - self.looked_at < DEAD_PEER_CHECK_EVERY:
            return False
        self.looked_at = now
        return any_proven_dead(self.others)

    def _form(
        self, name: str, directive: Directive, members: Sequence[Member], rank: int
    ) -> ProcessGroup | None:
        """Connect the members, which have all arrived, over the first one's store; None for one."""
        if len(members) == 1:
            return None
        # Processes that share a model each meet those of their own position in other workers.
        position = 0 if self.stage is None else self.stage.shared.position
        prefix = f"group/{generation_label(directive)}/{position}/{name}"
        rendezvous_store = TorchStore(members[0].address, GROUP_CONNECT_TIMEOUT.total_seconds())
        others = [member for member in members if member.worker != self.rendezvous.worker]

        def make() -> ProcessGroup:
            with closing(rendezvous_store):  # the group uses it only while it connects
                store = PrefixStore(prefix, rendezvous_store)
                return connect_group(store, rank, len(members), self.rendezvous.host)

        before = list_sockets()
        group = run_abortable(
            make, lambda: self.should_abort() or any_proven_dead(others), self.left_behind
        )
        self.forming.append(group)
        self._close_in_forks(group, tcp_connections(list_sockets() - before))
        return group

    def _close_in_forks(self, group: ProcessGroup, made: dict[Ports, SocketDescriptor]) -> None:
        """Close a group's connections in forks, since other members notice a death by them.

        Gloo does not say which connections it has made. They are those, among the connections made
        meanwhile, whose other end another member has.
        """
        room = group.size() + SPARE_CONNECTIONS
        mine = torch.zeros(room, 2, dtype=torch.int64)
        for place, ends in enumerate(list(made)[:room]):
            mine[place] = torch.tensor(ends)
        everyone = self._gather(group, mine)
        others = [each for rank, each in enumerate(everyone) if rank != group.rank()]
        theirs = {(own, other) for each in others for own, other in each.tolist()}
        for (own, other), (descriptor, _) in made.items():
            if (other, own) in theirs:
                close_in_forks(descriptor)

    def _take_over(
        self, directive: Directive, role: JoinRole, progress: TrainingProgress, *, is_new: bool
    ) -> TrainingProgress:
        """Take the state of the previous leader in a group with it, as it is no member any more."""
        assert role.donor is not None
        members = (*directive.members, role.donor)
        rank = len(directive.members) if role.rank is None else role.rank
        group = self._form("handover", directive, members, rank)
        assert group is not None
        return self._adopt(group, rank, directive.generation, progress, is_new=is_new)

    def _adopt(
        self,
        group: ProcessGroup,
        rank: int,
        generation: int,
        progress: TrainingProgress,
        *,
        is_new: bool,
    ) -> TrainingProgress:
        """Take the state of the most advanced member; nothing travels when all are equal."""
        mine = torch.tensor([-1 if is_new else progress.iteration])
        iterations = [int(theirs) for theirs in self._gather(group, mine)]
        if rank == 0 and max(iterations) < 0:
            progress = self.restore_checkpoint(self.state, progress)
        if len(set(iterations)) == 1 and iterations[0] >= 0:
            return progress
        source = max(range(len(iterations)), key=lambda place: (iterations[place], -place))
        if rank != source and is_new:
            reseed_worker(0, rank, generation)  # or all workers would drop the same neurons
        return self.state.broadcast(self._abortable(group), rank, source, progress)

    def _abortable(self, group: ProcessGroup) -> Any:
        return AbortableGroup(group, self._should_abort_collective)

    def _gather(self, group: ProcessGroup, mine: Tensor) -> list[Tensor]:
        """Return the tensors of all members, in the order of their ranks."""
        everyone = [torch.zeros_like(mine) for _ in range(group.size())]
        self._abortable(group).allgather([everyone], [mine]).wait()
        return everyone

    def _compare_layouts(self, group: ProcessGroup, rank: int) -> None:
        """Check that gradients have one memory layout on all members, or sums would mix them up.

        Raises:
            StateRefused: The layout here differs from the first member's.
        """
        mine = {name: comparable_strides(p) for name, p in self.state.named_parameters().items()}
        layout = to_json(mine)
        digest = int.from_bytes(blake2b(layout, digest_size=7).digest())
        facts = torch.tensor([digest, int(self.reducer.clock.is_late)])
        theirs = [each.tolist() for each in self._gather(group, facts)]
        if len({is_late for _, is_late in theirs}) > 1:
            raise StateRefused(
                "some workers train on a GPU and others on a CPU, whose gradients travel in"
                " different ways: train on the same kind of device on all workers"
            )
        if len({each for each, _ in theirs}) == 1:
            return
        first = _ORDERS.validate_json(broadcast_bytes(self._abortable(group), layout, 0))
        for name, order in mine.items():
            if first.get(name) != order:
                raise StateRefused(
                    f"parameters/{name} lies in memory in strides {order} here and"
                    f" {first.get(name)} at the first worker: give the model the same memory format"
                    " on all workers before the first batch"
                )

    def _read_outcome(self) -> StepSummary | None:
        if self.unread_outcome is None:
            return None
        measured, rows_of_workers = self.unread_outcome
        rows = name_columns(rows_of_workers.tolist())
        if self.reducer.device_rows is not None:
            agreed = StepSummary.of_rows(rows, shards=1, local_norm_sq=None, mean_norm_sq=None)
            return replace(agreed, late=self.reducer.device_rows.take())
        mean = measured.mean_norm_sq
        shards = 1 if any(row["is_skipped"] for row in rows) else measured.shards
        local = measured.summed_norm_sq
        if local is None:
            local = sum(row["local_norm_sq"] for row in rows)
        return StepSummary.of_rows(
            rows,
            shards=shards,
            local_norm_sq=local if shards > 1 else None,
            mean_norm_sq=None if mean is None or shards == 1 else mean.item(),
        )
