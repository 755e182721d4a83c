"""`DownpourStrategy`: Downpour SGD (Dean et al., 2012), every worker at its own pace.

A worker takes samples that no other worker has, computes its gradient at weights that may be
old, pushes it, and fetches the weights as the other workers have changed them meanwhile. No
worker waits for another, so a slow worker only contributes less, and a dead one nothing.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Optimizer

from scavenger.protocol import Directive
from worker_agent.errors import GenerationBroken, UnsupportedServerOptimizer
from worker_agent.frameworks import WHOLE_BATCH, AsynchronousUpdate, StrategyContext
from worker_agent.parameter_server.client import ParameterServerClient, StreamReply, connect_servers
from worker_agent.parameter_server.messages import JoinRequest
from worker_agent.pytorch import flat_model
from worker_agent.pytorch.flat_model import FlatModel
from worker_agent.pytorch.optimizer_hooks import StepHook, is_step_skipped, unscale
from worker_agent.pytorch.reducer import Reducer
from worker_agent.pytorch.state import optimized_parameters, reseed_worker
from worker_agent.sampler import SampleAssignment, SampleRange
from worker_agent.state.progress import TrainingProgress


class DownpourStrategy:
    """Trains with servers that apply each update at once.

    Args:
        context: The script's objects, and whom to ask while waiting. Its optimizer is Adagrad, or
            SGD without momentum.

    Raises:
        UnsupportedServerOptimizer: Its gradients may not come late.
    """

    def __init__(self, context: StrategyContext) -> None:
        self.context, self.optimizer = context, context.optimizer
        require_no_momentum(self.optimizer)
        self.reducer = Reducer(
            optimized_parameters(self.optimizer),
            micro_batches=context.micro_batches,
            should_abort=context.should_abort,
            on_work=context.on_work,
            has_servers=True,
        )
        self.flat = FlatModel(self.optimizer, self.reducer.buckets)
        self.client: ParameterServerClient | None = None
        self.model_steps = None  # the script makes its passes as it likes
        self.dataset_size = 0
        self.n_push = self.n_fetch = 1
        self.accrued: list[Tensor] = []
        self.used: list[SampleRange] = []
        self.unpushed = self.unfetched = 0
        self.batch_fraction = 1.0
        self.version = self.samples_used = self.staleness = 0
        self.is_stepped = False
        self.failure: str | None = None
        self.streamed: StreamReply | None = None
        self.sync_time = 0.0
        self.reducer.watch_forward(context.model)
        StepHook(self.optimizer, self._step)

    def connect(
        self, directive: Directive, progress: TrainingProgress, *, is_new: bool
    ) -> TrainingProgress:
        """Connect to the servers of a Directive; the leader fills empty ones.

        Raises:
            GenerationBroken: One is not there.
        """
        self.n_push, self.n_fetch = directive.exchange.n_push, directive.exchange.n_fetch
        # Without one while it connects: a connection that failed must not be taken for a good one.
        before, self.client = self.client, None
        client = connect_servers(directive, self.context, before)
        if client is before:
            self.client = client
            return progress
        try:
            text = "" if is_new else flat_model.pack_progress(progress)
            joining = JoinRequest(self.context.worker, (directive.members[0].worker,), is_new, text)
            for server, applied in enumerate(client.join((0, 0), progress.iteration, joining)):
                if applied < 0:
                    text = flat_model.pack_progress(progress)
                    samples = max(progress.samples, self.samples_used)
                    self.flat.put(client, server, progress.iteration, text, samples)
            self._forget()
            self.streamed = client.push_and_fetch(
                [], [], [], self.flat.weights.numpy(), is_fetching=True
            )
        except GenerationBroken:
            client.close()
            raise
        self.client, self.version = client, self.streamed.version
        self.flat.copy_weights_to_model()
        if is_new and (rank := directive.rank_of(self.context.worker)):
            reseed_worker(0, rank, directive.generation)
        return TrainingProgress(iteration=self.version)

    def take(self, count: int, limit: int) -> SampleAssignment:
        try:
            return self._server.take(count, limit)
        except GenerationBroken:
            self.close()  # its answer may still come, and belongs to no later request
            raise

    def begin(self, samples: SampleRange, batch_fraction: float) -> None:
        self.failure, self.streamed, self.is_stepped = None, None, False
        self.batch_fraction, self.sync_time = batch_fraction, 0.0
        self.used.append(samples)
        self.reducer.begin(WHOLE_BATCH)

    def end(self) -> AsynchronousUpdate | None:
        if self.reducer.is_incomplete:
            self.reducer.skip()  # its passes belong to no other batch
        self.reducer.end()
        if self.failure is not None:
            self.close()
            return None
        streamed = self.streamed
        has_pushed = streamed is not None and streamed.updates_before >= 0
        return AsynchronousUpdate(
            version=self.version,
            samples_used=self.samples_used,
            staleness=self.staleness if has_pushed else None,
            compute_time=self.reducer.compute_time,
            sync_time=self.sync_time,
        )

    def flush(self) -> None:
        if self.used:
            self._exchange(is_pushing=True, is_fetching=True)

    def finish(self) -> None:
        self._server.finish()

    def close(self) -> None:
        if self.client is not None:
            self.client.close()
        self.client = None

    @property
    def _server(self) -> ParameterServerClient:
        if self.client is None:
            raise GenerationBroken("there is no connection to the parameter servers")
        return self.client

    def _forget(self) -> None:
        """Drop what was not pushed: its samples have been handed to others."""
        self.accrued, self.used = [], []
        self.unpushed = self.unfetched = 0

    def _step(self, optimizer: Optimizer) -> None:
        """Push and fetch instead of stepping, or step alone until it is time for that."""
        if not self.reducer.is_active:
            return
        self.reducer.on_step()
        is_skipped = self.reducer.is_skipped_by_any() or is_step_skipped(optimizer)
        if not self.is_stepped and self.failure is None and not is_skipped:
            self.is_stepped = True
            self._accrue()
            self.unpushed, self.unfetched = self.unpushed + 1, self.unfetched + 1
            is_fetching = self.unfetched >= self.n_fetch
            if not is_fetching:
                self._step_alone()
            try:
                is_pushing = self.unpushed >= self.n_push
                if is_pushing or is_fetching:
                    self._exchange(is_pushing=is_pushing, is_fetching=is_fetching)
            except GenerationBroken as error:
                self.failure = str(error)
        optimizer.zero_grad(set_to_none=True)

    def _accrue(self) -> None:
        """Add this iteration's gradient to what is pushed next."""
        fresh = unscale(self.optimizer, self.flat.gradient())
        if self.batch_fraction != 1.0:
            fresh = [piece * self.batch_fraction for piece in fresh]
        if self.n_push == 1:
            self.accrued = fresh
        elif self.accrued:
            for sum_, piece in zip(self.accrued, fresh, strict=True):
                sum_.add_(piece)
        else:
            self.accrued = [piece.clone() for piece in fresh]

    def _step_alone(self) -> None:
        """Move this worker's own weights a plain step, until it fetches the servers'."""
        with torch.no_grad():
            for group in self.optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        (slope,) = unscale(self.optimizer, [parameter.grad])
                        parameter.sub_(slope, alpha=float(group["lr"]) * self.batch_fraction)

    def _exchange(self, *, is_pushing: bool, is_fetching: bool) -> None:
        """Push, or fetch, or both in one round trip."""
        began = time.perf_counter()
        gradient = [piece.numpy() for piece in self.accrued] if is_pushing else []
        shares = self.used if is_pushing else []
        self.streamed = self._server.push_and_fetch(
            self.flat.rates, shares, gradient, self.flat.weights.numpy(), is_fetching=is_fetching
        )
        if is_pushing:
            self.samples_used = self.streamed.samples_used
            if self.streamed.updates_before >= 0:
                self.staleness = self.streamed.updates_before - self.version
            self.accrued, self.used, self.unpushed = [], [], 0
        if is_fetching:
            self.version, self.unfetched = self.streamed.version, 0
            self.flat.copy_weights_to_model()
        self.sync_time = time.perf_counter() - began


def require_no_momentum(optimizer: Optimizer) -> None:
    """Refuse what diverges when gradients come late.

    Raises:
        UnsupportedServerOptimizer: It is neither Adagrad nor SGD without momentum.
    """
    kind = type(optimizer)
    if kind is Adagrad:
        return
    if kind is SGD and not any(group["momentum"] for group in optimizer.param_groups):
        return
    what = "SGD with momentum" if kind is SGD else kind.__name__
    raise UnsupportedServerOptimizer(
        f"Downpour SGD does not converge with {what}, because gradients come late: use "
        "torch.optim.Adagrad, or SGD with momentum=0, or strategy: parameter_server"
    )
