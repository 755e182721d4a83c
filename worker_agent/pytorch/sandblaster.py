"""`SandblasterStrategy`: L-BFGS on parameter servers (Dean et al., 2012), a worker's side.

A worker fetches the weights of an evaluation, computes loss and gradient of portions of its batch,
and pushes their sums. Servers and coordinator do the rest, so workers come, go and lag as they
like: another one computes what a slow or dead one was given.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import LBFGS, Optimizer

from scavenger.protocol import Directive
from worker_agent.errors import GenerationBroken, UnsupportedModel, UnsupportedServerOptimizer
from worker_agent.frameworks import AsynchronousUpdate, StrategyContext
from worker_agent.parameter_server.client import ParameterServerClient, connect_servers
from worker_agent.parameter_server.lbfgs import LbfgsOptions
from worker_agent.parameter_server.lbfgs_client import EvaluationClient
from worker_agent.parameter_server.lbfgs_messages import PortionOffer
from worker_agent.parameter_server.messages import JoinRequest
from worker_agent.parameter_server.portions import PortionRun
from worker_agent.pytorch.optimizer_hooks import ClosureFunction, with_closure
from worker_agent.pytorch.state import optimized_parameters
from worker_agent.pytorch.tensors import flatten_all
from worker_agent.sampler import SampleAssignment, SampleRange
from worker_agent.state.progress import TrainingProgress

log = logging.getLogger(__name__)

# Evaluations of one generation; each start counts from its generation's own place.
EVALUATIONS_PER_START = 1 << 24


class SandblasterStrategy:
    """Trains with servers that step by L-BFGS.

    Args:
        context: The script's objects, and whom to ask while waiting. Its optimizer is LBFGS, which
            never steps here.

    Raises:
        UnsupportedServerOptimizer: It is another one.
        UnsupportedModel: The same weights would not always have the same loss, or there is none.
    """

    def __init__(self, context: StrategyContext) -> None:
        self.context, self.optimizer = context, context.optimizer
        require_strong_wolfe(self.optimizer)
        require_repeatable_loss(context)
        assert context.loss is not None
        self.parameters = [p for p in optimized_parameters(self.optimizer) if p.requires_grad]
        is_double = any(p.dtype == torch.float64 for p in self.parameters)
        size = sum(p.numel() for p in self.parameters)
        self.weights = torch.empty(size, dtype=torch.float64 if is_double else torch.float32)
        self.gradient = torch.zeros(size, dtype=torch.float64)
        self.model_steps = PortionSteps(context.model, context.loss, self._before, self._after)
        self.dataset_size = 0
        self.client: ParameterServerClient | None = None
        self.offer: PortionOffer | None = None
        self.evaluation = -1  # whose weights the model has
        self.left: deque[int] = deque()  # portions of the run that was offered
        self.done = 0  # portions of it whose sums are in gradient and loss
        self.loss = 0.0
        self.samples = SampleRange(0, 0)
        self.is_stepped = False
        self.version = self.reported_version = self.samples_used = 0
        self.began_at = self.compute_time = self.sync_time = 0.0
        self.optimizer.register_step_pre_hook(self._instead_of_step)

    def connect(
        self, directive: Directive, progress: TrainingProgress, *, is_new: bool
    ) -> TrainingProgress:
        """Connect to the servers of a Directive; the leader fills them if one is empty.

        Raises:
            GenerationBroken: One is not there.
        """
        leader = directive.members[0].worker
        before, self.client = self.client, None
        client = connect_servers(directive, self.context, before)
        if client is before and leader != self.context.worker:
            self.client = client
            return progress
        try:
            joining = JoinRequest(self.context.worker, (leader,), is_new, "")
            starts = client.join((0, 0), progress.iteration, joining)
            # They differ after a leader died while it filled them.
            if min(starts) < 0 or len(set(starts)) > 1:
                self._fill(client, directive, progress)
        except GenerationBroken:
            client.close()
            raise
        if client is not before:
            self._forget()
        self.client = client
        return progress

    def take(self, count: int, limit: int) -> SampleAssignment:
        """Take the next portion; the count is the coordinator's affair."""
        offer = self.offer
        if not self.left or offer is None:
            offer = self._ask(limit)
            if offer.run is None:
                is_over = offer.is_over
                return SampleAssignment(None, is_over, self.samples_used, offer.has_converged)
        return SampleAssignment(
            offer.samples.part(self.left.popleft(), offer.portions), False, self.samples_used
        )

    def begin(self, samples: SampleRange, batch_fraction: float) -> None:
        self.samples, self.is_stepped = samples, False

    def end(self) -> AsynchronousUpdate | None:
        """Count the portion, and push at the end of its run.

        Raises:
            RuntimeError: The script has not trained on it, so that the loss is not known.
        """
        if not self.is_stepped:
            raise RuntimeError(
                "strategy sandblaster needs the loss of every batch that job.batches() yields: "
                "call job.step(inputs, targets) once for each"
            )
        self.done += 1
        if not self.left:
            try:
                self.flush()
            except GenerationBroken as error:
                log.debug("%s", error)
                return None
        return self._update()

    def flush(self) -> None:
        """Push the portions that are done; whether they count changes nothing here."""
        if not self.done or self.offer is None or self.offer.run is None:
            return
        run = PortionRun(self.offer.run.first, self.done)
        began = time.perf_counter()
        gradient = self.gradient.to(self.weights.dtype).numpy()
        with self._closed_on_loss():
            reply = self._servers.accumulate(self.evaluation, run, self.loss, gradient)
        self.sync_time += time.perf_counter() - began
        if reply is not None:
            self.version, self.samples_used = reply.iteration, reply.samples_used
        self._forget()

    def finish(self) -> None:
        with self._closed_on_loss():
            self._servers.finish()

    @contextmanager
    def _closed_on_loss(self) -> Iterator[None]:
        """Close connections on which an answer may still come that belongs to no later request."""
        try:
            yield
        except GenerationBroken:
            self.close()
            raise

    def close(self) -> None:
        if self.client is not None:
            self.client.close()
        self.client = None

    @property
    def _servers(self) -> EvaluationClient:
        if self.client is None:
            raise GenerationBroken("there is no connection to the parameter servers")
        return EvaluationClient(self.client)

    def _fill(
        self, client: ParameterServerClient, directive: Directive, progress: TrainingProgress
    ) -> None:
        """Begin L-BFGS with this worker's weights, without the history that the servers had."""
        batch = min(directive.config.global_batch, self.dataset_size)
        is_full = batch == self.dataset_size
        if not is_full:
            log.warning(
                "sandblaster: each iteration has other samples, so that differences of gradients "
                "are noise: write limits.batch: %d, the size of the data set",
                self.dataset_size,
            )
        group = self.optimizer.param_groups[0]
        options = LbfgsOptions(
            rate=float(group["lr"]),
            tolerance_grad=float(group["tolerance_grad"]),
            tolerance_change=float(group["tolerance_change"]),
            history=directive.lbfgs.history,
            batch=batch,
            portions=min(directive.lbfgs.portions, batch),
            is_full=is_full,
        )
        place = {
            "evaluation": directive.generation * EVALUATIONS_PER_START,
            "iteration": progress.iteration,
            "samples": max(progress.samples, self.samples_used),
        }
        weights = flatten_all(p.data.to("cpu", self.weights.dtype) for p in self.parameters)
        EvaluationClient(client).start(options, weights.numpy(), place)

    def _ask(self, limit: int) -> PortionOffer:
        """Ask for portions, and fetch the weights that they are of."""
        with self._closed_on_loss():
            return self._ask_servers(limit)

    def _ask_servers(self, limit: int) -> PortionOffer:
        began = time.perf_counter()
        offer = self._servers.take(limit)
        self.version, self.samples_used = offer.iteration, offer.samples_used
        wanted = offer.point if offer.run is None else offer.evaluation
        is_needed = offer.run is not None or offer.is_over
        if is_needed and wanted != self.evaluation:
            if not self._servers.fetch(wanted, self.weights.numpy()):
                return self._without_portions(offer)
            self.evaluation = wanted
            self._copy_weights_to_model()
        self._forget()
        self.offer = offer
        self.left.extend(() if offer.run is None else offer.run.portions)
        self.sync_time += time.perf_counter() - began
        return offer

    def _without_portions(self, offer: PortionOffer) -> PortionOffer:
        """Return an offer that came too late: its evaluation is over."""
        self._forget()
        return PortionOffer(
            run=None,
            evaluation=offer.evaluation,
            samples=offer.samples,
            portions=offer.portions,
            point=offer.point,
            iteration=offer.iteration,
            samples_used=offer.samples_used,
            is_over=False,
            has_converged=False,
        )

    def _copy_weights_to_model(self) -> None:
        pieces = torch.split(self.weights, [p.numel() for p in self.parameters])
        with torch.no_grad():
            torch._foreach_copy_(
                [parameter.data for parameter in self.parameters],
                [piece.view_as(p) for p, piece in zip(self.parameters, pieces, strict=True)],
            )

    def _forget(self) -> None:
        """Drop sums that are pushed, or were computed for servers that are gone."""
        self.offer, self.done, self.loss = None, 0, 0.0
        self.left.clear()
        self.gradient.zero_()

    def _update(self) -> AsynchronousUpdate:
        ends, self.reported_version = self.version > self.reported_version, self.version
        compute_time, sync_time = self.compute_time, self.sync_time
        if ends:
            self.compute_time = self.sync_time = 0.0
        return AsynchronousUpdate(
            version=self.version,
            samples_used=self.samples_used,
            staleness=None,
            compute_time=compute_time,
            sync_time=sync_time,
            ends_iteration=ends,
        )

    # Around the script's passes.

    def _before(self) -> None:
        if self.is_stepped:
            raise RuntimeError(
                "job.step was called twice for one batch, whose loss would count twice: call it "
                "once for each batch that job.batches() yields"
            )
        self.context.on_work(is_called_by_script=True)
        self.optimizer.zero_grad(set_to_none=True)
        self.began_at = time.perf_counter()

    def _after(self, loss: Tensor) -> None:
        """Add a portion's loss and gradient, which are means, to the sums of its run."""
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        mean = flatten_all(each.detach().to("cpu", torch.float64) for each in found)
        self.gradient.add_(mean, alpha=self.samples.count)
        self.loss += float(loss) * self.samples.count
        self.optimizer.zero_grad(set_to_none=True)
        self.is_stepped = True
        self.compute_time += time.perf_counter() - self.began_at

    def _instead_of_step(self, optimizer: Optimizer, arguments: Any, options: Any) -> Any:
        """Call the closure of a step, and let the step itself find no gradient and do nothing."""

        def around(closure: ClosureFunction) -> ClosureFunction:
            def once(*given: Any, **named: Any) -> Any:
                result = closure(*given, **named)
                optimizer.zero_grad(set_to_none=True)
                return result

            return once

        changed = with_closure(arguments, options, around)
        return ((optimizer, around(lambda: 0.0)), {}) if changed is None else changed


class PortionSteps:
    """``job.step`` and ``job.predict`` of a Sandblaster job; implements ``frameworks.ModelSteps``.

    Args:
        model: The script's model.
        loss: Mean loss over a batch, from outputs and targets.
        before: Called before a forward pass.
        after: Called with the loss, after the backward pass.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Any, Any], Tensor],
        before: Callable[[], None],
        after: Callable[[Tensor], None],
    ) -> None:
        self.model, self.loss = model, loss
        self.before, self.after = before, after
        self.staleness = None  # all portions are of the same weights

    def step(self, inputs: Any, targets: Any) -> Tensor:
        """Return the portion's loss, after its backward pass."""
        self.before()
        loss = self.loss(self.model(inputs), targets)
        torch.autograd.backward(loss)
        self.after(loss.detach())
        return loss.detach()

    def predict(self, inputs: Any) -> Any:
        """Return the model's outputs, without gradients."""
        with torch.no_grad():
            return self.model(inputs)


def require_strong_wolfe(optimizer: Optimizer) -> None:
    """Refuse an optimizer that says something else than what the servers do.

    Raises:
        UnsupportedServerOptimizer: It is not LBFGS with its line search.
    """
    group = optimizer.param_groups[0]
    if type(optimizer) is LBFGS and group["line_search_fn"] == "strong_wolfe":
        return
    raise UnsupportedServerOptimizer(
        f"strategy sandblaster steps by L-BFGS, not by {type(optimizer).__name__} as it was "
        'passed: write torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe"), or '
        "another strategy"
    )


def require_repeatable_loss(context: StrategyContext) -> None:
    """Refuse what would give the same weights another loss, or none.

    Raises:
        UnsupportedModel: With a sentence that says what to write.
    """
    if context.loss is None:
        raise UnsupportedModel(
            "strategy sandblaster needs the loss: write job.prepare(model, optimizer, loss=...) "
            "and call job.step(inputs, targets)"
        )
    if context.micro_batches > 1:
        raise UnsupportedModel(
            "strategy sandblaster cuts the batch itself: leave micro_batches out, and write more "
            "portions in the job document"
        )
    if "scaler" in context.extra_state:
        raise UnsupportedModel(
            "strategy sandblaster adds gradients without a loss scale: leave scaler out, and "
            "train in float32, bfloat16 or float64"
        )
    for name, module in context.model.named_modules():
        if is_random(module):
            raise UnsupportedModel(
                f"{name or 'the model'} ({type(module).__name__}) is random, so that the same "
                "weights have another loss each time: write p=0, another module, or strategy: "
                "downpour"
            )
        if isinstance(module, _BatchNorm):
            raise UnsupportedModel(
                f"{name or 'the model'} ({type(module).__name__}) depends on how the batch is cut: "
                "write nn.GroupNorm, or strategy: all_reduce"
            )


def is_random(module: nn.Module) -> bool:
    """Whether a module computes at random while it is trained."""
    if isinstance(module, _DropoutNd):
        return module.p > 0
    if isinstance(module, nn.RNNBase):  # after each layer but the last
        return float(module.dropout) > 0 and module.num_layers > 1
    if isinstance(module, nn.MultiheadAttention):
        return float(module.dropout) > 0
    return isinstance(module, nn.RReLU | nn.FractionalMaxPool2d | nn.FractionalMaxPool3d)
