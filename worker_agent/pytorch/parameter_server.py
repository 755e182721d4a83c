"""`ParameterServerStrategy`: synchronous training with parameter servers, the setting of the paper.

Workers push their gradients; the servers wait for all of them, average, step the optimizer and
send the weights back. The script's own optimizer never steps: its step is the moment of the
push, so everything the script did to the gradients before, such as unscaling or clipping,
applies to this worker's part.
"""

from __future__ import annotations

import time
from dataclasses import astuple, replace

import numpy as np
from torch.optim import Optimizer

from scavenger.protocol import Directive
from worker_agent.errors import GenerationBroken, StateRefused
from worker_agent.frameworks import (
    NO_FLAGS,
    BatchSlice,
    ControlFlags,
    JoinRole,
    StepSummary,
    StrategyContext,
    name_columns,
)
from worker_agent.parameter_server.client import ParameterServerClient, connect_servers
from worker_agent.parameter_server.messages import (
    IterationOutcome,
    JoinRequest,
    PushRequest,
)
from worker_agent.pytorch import flat_model
from worker_agent.pytorch.flat_model import FlatModel
from worker_agent.pytorch.optimizer_hooks import (
    LearningRateScaler,
    StepHook,
    is_step_skipped,
    unscale,
)
from worker_agent.pytorch.reducer import Reducer
from worker_agent.pytorch.state import TrainingState, optimized_parameters, reseed_worker
from worker_agent.pytorch.suppressed_steps import SuppressedSteps
from worker_agent.rendezvous.rendezvous import StoreRendezvous
from worker_agent.state.progress import TrainingProgress, TrainingSnapshot


class ParameterServerStrategy:
    """Trains with servers that wait for all workers.

    Args:
        rendezvous: Where the workers find each other.
        context: The script's objects, and whom to ask while waiting.

    Raises:
        UnsupportedServerOptimizer: Servers cannot run this optimizer.
    """

    def __init__(self, rendezvous: StoreRendezvous, context: StrategyContext) -> None:
        model, optimizer = context.model, context.optimizer
        self.rendezvous, self.context = rendezvous, context
        self.steps = LearningRateScaler(optimizer)
        self.state = TrainingState(model, optimizer, context.extra_state)
        self.reducer = Reducer(
            optimized_parameters(optimizer),
            micro_batches=context.micro_batches,
            should_abort=context.should_abort,
            on_work=context.on_work,
            has_servers=True,
        )
        self.flat = FlatModel(optimizer, self.reducer.buckets)
        self.client: ParameterServerClient | None = None
        self.directive: Directive | None = None
        self.progress = TrainingProgress()
        self.flags = NO_FLAGS
        self.part = BatchSlice(1.0, 1.0, is_last=True)
        self.is_pushed = self.is_given_up = self.is_half_skipped = False
        self.failure: str | None = None
        self.sync_time = 0.0
        self.latest_summary: StepSummary | None = None
        self.previous_summary: StepSummary | None = None
        self.skipped_steps = None  # the job document refuses a guard here
        self.rehearsals = None  # it refuses stacks, too
        self.model_steps = None  # each worker has the whole model
        self.calls = SuppressedSteps(context.extra_state, self._counts_nothing, self._is_open)
        self.reducer.watch_forward(model)
        StepHook(optimizer, self._step)

    def join(
        self, directive: Directive, role: JoinRole, progress: TrainingProgress, *, is_new: bool
    ) -> TrainingProgress:
        """Enter the generation at all servers, and take their weights where they are ahead.

        Raises:
            GenerationBroken: A server is not there, or knows of a newer generation.
        """
        self.failure = self.latest_summary = self.previous_summary = None
        self.sync_time = 0.0
        try:
            self.client = client = connect_servers(directive, self.context, self.client)
            applied = self._enter(client, directive, role, progress, is_new=is_new)
            iteration = min(applied)
            if is_new or iteration != progress.iteration:
                progress = self._adopt(client, iteration, progress)
        except GenerationBroken:
            self.leave()
            raise
        if is_new and role.rank:
            # Else all workers would drop the same neurons.
            reseed_worker(0, role.rank, directive.generation)
        if role.rank is None:
            self.leave()
        self.directive, self.progress = directive, progress
        return progress

    def begin(self, part: BatchSlice, flags: ControlFlags) -> None:
        self.part, self.flags = part, flags
        self.is_pushed = self.is_given_up = False
        # The servers weigh with this worker's share; here its own slices are compared.
        self.reducer.begin(replace(part, worker_fraction_of_batch=1.0))
        self.is_half_skipped = self.reducer.measured.is_skipped

    def end(self) -> bool:
        """Close the iteration; if this worker's script did not step, no worker's weights move."""
        if not self.is_pushed and self.failure is None:
            if self.reducer.is_incomplete:
                self.reducer.skip()
            self._push(is_skipped=True)
        self.calls.settle()
        self.reducer.end()
        if self.failure is not None:
            self.leave()
            return False
        assert self.directive is not None
        self.progress = self.progress.after_iteration(self.directive)
        return True

    def scale_learning_rate(self, factor: float) -> None:
        self.steps.factor = factor

    def snapshot(self, progress: TrainingProgress) -> TrainingSnapshot:
        """Fetch the optimizer's state from the servers and copy everything, between iterations.

        Raises:
            StateRefused: A server is lost, or something cannot be saved.
        """
        try:
            client = self._servers
            self.flat.load_optimizer_state(
                [client.fetch_shard(server) for server in range(len(client.addresses))]
            )
        except GenerationBroken as error:
            raise StateRefused(
                f"the parameter servers did not return the optimizer state: {error}"
            ) from error
        return self.state.snapshot(progress)

    def leave(self) -> None:
        """Close the connections; this worker may come back by others."""
        if self.client is not None:
            self.client.leave()
        self.client = None

    def close(self) -> None:
        """Let the servers and the other workers know that this worker is gone."""
        if self.client is not None:
            self.client.close()
        self.rendezvous.close()

    # Joining.

    @property
    def _servers(self) -> ParameterServerClient:
        if self.client is None:
            raise GenerationBroken("there is no connection to the parameter servers")
        return self.client

    def _enter(
        self,
        client: ParameterServerClient,
        directive: Directive,
        role: JoinRole,
        progress: TrainingProgress,
        *,
        is_new: bool,
    ) -> list[int]:
        """Join at all servers; returns what each has applied. The leader fills empty ones."""
        text = "" if is_new else self._client_state(progress)
        members = tuple(member.worker for member in directive.members)
        joining = JoinRequest(self.context.worker, members, is_new, text)
        turn = directive.generation, directive.revision
        applied = client.join(turn, progress.iteration, joining)
        if is_new and max(applied) < 0:
            progress = self.context.restore_checkpoint(self.state, progress)
        newest = max(progress.iteration, *applied)
        for server, each in enumerate(applied):
            if each < 0:
                text = self._client_state(progress)
                self.flat.put(client, server, newest, text, progress.samples)
        return [newest if each < 0 else each for each in applied]

    def _client_state(self, progress: TrainingProgress) -> str:
        model, optimizer = self.context.model, self.context.optimizer
        return flat_model.pack_client_state(progress, model, optimizer, self.context.extra_state)

    def _adopt(
        self, client: ParameterServerClient, iteration: int, progress: TrainingProgress
    ) -> TrainingProgress:
        """Take weights, and what else others have left for newcomers."""
        text = client.fetch(iteration, self.flat.weights.numpy())
        self.flat.copy_weights_to_model()
        if not text:
            return progress
        model, optimizer = self.context.model, self.context.optimizer
        return flat_model.unpack_client_state(text, model, optimizer, self.context.extra_state)

    # Inside an iteration.

    def _step(self, optimizer: Optimizer) -> None:
        """Push instead of stepping: without gradients the script's own step does nothing."""
        if not self.reducer.is_active:
            return
        self.reducer.on_step()
        if self.part.is_last and not self.is_pushed and self.failure is None:
            self._push(is_skipped=self.reducer.is_skipped_by_any() or is_step_skipped(optimizer))
        optimizer.zero_grad(set_to_none=True)

    def _counts_nothing(self) -> bool:
        """Whether this pass of the loop body is half an iteration, or one that will be redone.

        Or one whose samples a worker has skipped, as all do then: schedules stay equal.
        """
        return not self.part.is_last or self.failure is not None or self.is_given_up

    def _is_open(self) -> bool:
        """Whether others, or a failure, may yet let this iteration count for nothing."""
        return self.reducer.is_active and not self.is_pushed

    def _push(self, *, is_skipped: bool) -> None:
        """Exchange the gradients for new weights; a failure is kept until the iteration ends."""
        assert self.directive is not None
        began = time.perf_counter()
        gradient = unscale(self.context.optimizer, self.flat.gradient())
        # On a device that copy has waited for the gradients, whose times can be read from here on.
        copying = 0.0 if self.reducer.clock.is_late else time.perf_counter() - began
        said = PushRequest(
            share=self.part.worker_fraction_of_batch,
            is_skipped=is_skipped,
            row=np.array(self._row()),
            rates=np.array(self.flat.rates),
            clock=flat_model.pack_progress(self.progress.after_iteration(self.directive)),
        )
        began = time.perf_counter()
        try:
            outcome = self._servers.push(
                self.progress.iteration,
                said,
                [piece.numpy() for piece in gradient],
                self.flat.weights.numpy(),
            )
        except GenerationBroken as error:
            self.failure = str(error)
            return
        self.flat.copy_weights_to_model()
        self.sync_time = copying + time.perf_counter() - began
        self.is_pushed = True
        self.previous_summary, self.latest_summary = self.latest_summary, self._summarize(outcome)

    def _row(self) -> list[float]:
        """Return what this worker tells the others, in the order of SUMMARY_COLUMNS."""
        flags = [float(flag) for flag in astuple(self.flags)]
        is_skipped = float(self.reducer.is_skipped_by_any())
        times = self.reducer.compute_time, self.sync_time
        return [*flags, self._own_noise(), *times, is_skipped]

    def _own_noise(self) -> float:
        """Return mean ||g_j||² / ||mean g_j||² over this worker's own slices; 1 with one.

        A ratio stays right when the script scales the gradient afterwards, such as by unscaling it.
        """
        measured = self.reducer.measured
        if measured.local_norm_sq is None or measured.mean_norm_sq is None:
            return 1.0
        return float(measured.local_norm_sq / measured.mean_norm_sq)

    def _summarize(self, outcome: IterationOutcome) -> StepSummary:
        """Combine the rows of the workers with the norms that the servers measured."""
        rows = name_columns(outcome.rows.tolist())
        # Of a whole batch that a worker alone skips, its schedule is the script's own affair.
        is_ours = len(rows) > 1 or self.is_half_skipped
        self.is_given_up = is_ours and any(row["is_skipped"] for row in rows)
        own = np.array([row["local_norm_sq"] for row in rows])
        shards = self.reducer.measured.shards * len(rows)
        return StepSummary.of_rows(
            rows,
            shards=shards,
            local_norm_sq=float(outcome.norms_sq @ own) if shards > 1 else None,
            mean_norm_sq=outcome.mean_norm_sq if shards > 1 else None,
        )
