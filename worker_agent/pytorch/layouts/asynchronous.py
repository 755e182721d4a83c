"""`AsynchronousPipeline`: one forward, one backward without a flush, as PipeDream trains.

Minibatches follow each other through the stages without waiting for the iteration to end, so no
stage is idle and a stage's gradient of a minibatch comes some minibatches later. A forward pass
takes the newest weights of its stage and keeps them for its backward pass (weight stashing;
Harlap et al. 2018, Narayanan et al., SOSP 2019). With one process in each of P stages::

    w_s(k+1) = w_s(k) - η ∇f(w_0(k-P+1), w_1(k-P+2), …, w_{P-1}(k))_s

With vertical sync a minibatch uses in all stages the version that the first stage has when it
enters, and each stage keeps its own weights until the last minibatch that uses them has left it::

    w_s(k+1) = w_s(k) - η ∇f(w_0(k-P+1), w_1(k-P+1), …, w_{P-1}(k-P+1))_s

A stage of r processes takes minibatches in turn. Their gradients of r minibatches are averaged, and
all of them step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from worker_agent.errors import UnsupportedModel
from worker_agent.pytorch.layouts.pipeline import predict_by_stages
from worker_agent.pytorch.layouts.world import WorkerWorld
from worker_agent.pytorch.tensors import flatten_all

SENDABLE_DTYPES: Final = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
MAX_DIMENSIONS: Final = 8
# What is sent of a minibatch: tags of one that has left the pipeline are used again.
HEADER, ACTIVATION, GRADIENT, LOSS, TAGS_PER_MINIBATCH = range(5)
MINIBATCHES_WITH_TAGS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class MinibatchInFlight:
    """A minibatch between the forward and the backward pass of this stage.

    Attributes:
        number: Its place since the pipeline was empty, from 0.
        weights: The weights that its forward pass has used, by name.
        given: What the stage before has sent; None in the first.
        result: What the stage has computed: its outputs, or the loss in the last.
    """

    number: int
    weights: Mapping[str, Tensor]
    given: Tensor | None
    result: Tensor


@dataclass(frozen=True, slots=True)
class SentTensor:
    """What was sent of a minibatch; its memory must stay until it has left."""

    number: int
    work: Any
    tensor: Tensor


class StageCall(nn.Module):
    """Runs a function while a stage has other weights, by `functional_call`.

    A backward pass needs them too: activation checkpointing computes forward passes again in it.
    """

    def __init__(self, blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = blocks

    def forward(self, run: Callable[[nn.Module], Any]) -> Any:
        return run(self.blocks)


class AsynchronousPipeline:
    """The passes of one process of an asynchronous pipeline.

    Args:
        world: The processes of the worker.
        stage: The blocks of this process.
        optimizer: What steps them.
        loss: Mean loss over a batch, from outputs and targets.
    """

    def __init__(
        self,
        world: WorkerWorld,
        stage: nn.Module,
        optimizer: Optimizer,
        loss: Callable[[Any, Any], Tensor],
    ) -> None:
        self.world, self.blocks, self.optimizer, self.loss = world, stage, optimizer, loss
        self.layout = world.layout
        self.is_first, self.is_last = world.stage == 0, world.stage == self.layout.pipeline - 1
        self.processes = len(self.layout.positions(world.stage))
        self.delay, self.lag = self.layout.delay(world.stage), self.layout.delay(0)
        self.staleness = self.layout.staleness
        self.parameters = {n: p for n, p in stage.named_parameters() if p.requires_grad}
        self.call = StageCall(stage)
        self.is_stepped = True
        optimizer.register_step_post_hook(self._after_step)
        self._empty()

    def _empty(self) -> None:
        self.begun = 0
        self.in_flight: deque[MinibatchInFlight] = deque()
        self.newest = 0  # minibatches whose gradients the weights contain, as Layout.version
        self.versions: dict[int, Mapping[str, Tensor]] = {}  # that later forward passes use
        self.gradients: Sequence[Tensor | None] | None = None
        self.sending: deque[SentTensor] = deque()
        self.losses: dict[int, Tensor] = {}
        self.heard = 0

    def begin_generation(self, noise_every: int) -> None:
        """Measure no noise: gradients of one iteration are of different weights."""

    def step(self, inputs: Tensor, targets: Any) -> Tensor:
        """Begin a minibatch, and go back with the one whose turn it is.

        The script's optimizer steps where a gradient is left, which is so in the iterations that
        end a turn of the stage's processes.

        Returns:
            The loss of the minibatch that leaves the first stage now; that of this minibatch while
            the pipeline fills.
        """
        number, due = self.begun, self.begun - self.delay
        self._forget_sent()
        self.begun += 1
        if self._is_mine(number):
            self._forward(number, inputs, targets)
        if due >= 0:
            self._backward(due)
        if due >= 0 and self._ends_turn(due):
            self._keep_version(number + 1)  # the optimizer is about to change the weights
            self._share_gradients(self.processes)
            self.newest = due + 1
        elif self.is_stepped:  # by a gradient that was left before, so nothing is to be added up
            self._clear_gradients()
        return self._loss_of(number if number < self.lag else number - self.lag).clone()

    def _after_step(self, *_: Any) -> None:
        self.is_stepped = True

    def predict(self, inputs: Tensor) -> Any:
        """Return the model's outputs on all processes, each of which passes the inputs."""
        return predict_by_stages(self.world, [self.blocks], inputs)

    def drain(self) -> None:
        """End all minibatches that were begun, stepping the optimizer; all processes call it."""
        if self.begun == 0:
            return
        for due in range(max(self.begun - self.delay, 0), self.begun):
            self._backward(due)
            if self._ends_turn(due):
                self._share_gradients(self.processes)
                self.optimizer.step()
        if unfinished := self.begun % self.processes:
            self._share_gradients(unfinished)
            self.optimizer.step()
        self._clear_gradients()
        self._hear_losses(self.begun - 1)
        for sent in self.sending:
            sent.work.wait()
        self._empty()

    # Passes.

    def _is_mine(self, number: int) -> bool:
        return number % self.processes == self.world.replica

    def _ends_turn(self, number: int) -> bool:
        return number % self.processes == self.processes - 1

    def _forward(self, number: int, inputs: Tensor, targets: Any) -> None:
        given = None if self.is_first else self._receive_activation(number)
        version = self.layout.version(self.world.stage, number)
        if version == self.newest:
            self._keep_version(number)
        weights = self.versions[version]
        if given is not None:
            inputs = given
        elif self.delay:  # the script may use its memory for the next batch
            inputs = tree_map(lambda each: each.clone() if torch.is_tensor(each) else each, inputs)
        with torch.enable_grad():
            result = self._with(weights, lambda blocks: blocks(inputs))
            if self.is_last:
                result = self.loss(result, targets)
        if self.is_last:
            self._tell_loss(number, result.detach().to("cpu", torch.float64))
        else:
            self._send_activation(number, result)
        self.in_flight.append(MinibatchInFlight(number, weights, given, result))
        oldest = self.layout.version(self.world.stage, number + self.processes)
        self.versions = {each: held for each, held in self.versions.items() if each >= oldest}

    def _keep_version(self, number: int) -> None:
        """Copy the weights if a forward pass of this process, from a minibatch on, uses them."""
        if self.newest in self.versions:
            return
        first = number + (self.world.replica - number) % self.processes
        later = (self.layout.version(self.world.stage, n) for n in count(first, self.processes))
        if next(version for version in later if version >= self.newest) == self.newest:
            self.versions[self.newest] = {
                name: parameter.detach().clone().requires_grad_()
                for name, parameter in self.parameters.items()
            }

    def _backward(self, number: int) -> None:
        """Compute this stage's gradient of a minibatch if it is one of this process."""
        if not self._is_mine(number):
            return
        minibatch = self.in_flight.popleft()
        slope = None
        if not self.is_last:
            slope = torch.empty_like(minibatch.result, memory_format=torch.contiguous_format)
            dist.recv(slope, self._owner(self.world.stage + 1, number), tag=tag(number, GRADIENT))
        sources = list(minibatch.weights.values())
        if minibatch.given is not None:
            sources.append(minibatch.given)
        found: list[Tensor | None] = list(
            self._with(
                minibatch.weights,
                lambda _: torch.autograd.grad(minibatch.result, sources, slope, allow_unused=True),
            )
        )
        if minibatch.given is not None:
            back = found.pop()
            back = torch.zeros_like(minibatch.given) if back is None else back.contiguous()
            self._send(number, GRADIENT, back, self._owner(self.world.stage - 1, number))
        self.gradients = found

    def _with(self, weights: Mapping[str, Tensor], run: Callable[[nn.Module], Any]) -> Any:
        """Run a function of the stage's blocks while they have these weights."""
        named = {f"blocks.{name}": weight for name, weight in weights.items()}
        return functional_call(self.call, named, (run,))

    def _share_gradients(self, minibatches: int) -> None:
        """Leave the mean gradient of a turn, of so many minibatches, to the optimizer."""
        mine, self.gradients = self.gradients, None
        if self.processes == 1:
            assert mine is not None
            self._set_gradients(mine)
            return
        pieces = [torch.zeros_like(weight) for weight in self.parameters.values()]
        for place, piece in zip(pieces, mine or (), strict=False):
            if piece is not None:
                place.copy_(piece)
        for dtype in dict.fromkeys(piece.dtype for piece in pieces):
            own = [piece for piece in pieces if piece.dtype == dtype]
            flat = flatten_all(own)
            dist.all_reduce(flat, group=self.world.replica_group)
            flat /= minibatches
            parts = torch.split(flat, [piece.numel() for piece in own])
            for piece, part in zip(own, parts, strict=True):
                piece.copy_(part.view(piece.shape))
        self._set_gradients(pieces)

    def _set_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        """Leave gradients to the optimizer, beside those that it has not stepped with yet."""
        for parameter, gradient in zip(self.parameters.values(), gradients, strict=True):
            if self.is_stepped or parameter.grad is None:
                parameter.grad = gradient
            elif gradient is not None:
                parameter.grad = parameter.grad + gradient
        self.is_stepped = False

    def _clear_gradients(self) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None
        self.is_stepped = True

    # Messages.

    def _owner(self, stage: int, number: int) -> int:
        """Return the position of the process of a stage that computes a minibatch."""
        positions = self.layout.positions(stage)
        return positions[number % len(positions)]

    def _send(self, number: int, kind: int, tensor: Tensor, to: int) -> None:
        work = dist.isend(tensor, to, tag=tag(number, kind))
        self.sending.append(SentTensor(number, work, tensor))

    def _forget_sent(self) -> None:
        """Give memory back of what others have received, or will without this process.

        Of a minibatch all is received in the iteration ``lag`` after it, and to get there no other
        process needs an iteration of this one that is not over. Gloo says that a message has left
        only to those who wait for it.
        """
        while self.sending and self.sending[0].number < self.begun - self.lag:
            self.sending.popleft().work.wait()

    def _send_activation(self, number: int, value: Any) -> None:
        if not isinstance(value, Tensor) or value.dtype not in SENDABLE_DTYPES:
            kind = value.dtype if isinstance(value, Tensor) else type(value).__qualname__
            raise UnsupportedModel(
                f"stage {self.world.stage} hands on {kind}, and stages pass one tensor of floats:"
                " cut the model elsewhere, with cuts or blocks="
            )
        value, to = value.detach(), self._owner(self.world.stage + 1, number)
        header = torch.zeros(2 + MAX_DIMENSIONS, dtype=torch.int64)
        sizes = [SENDABLE_DTYPES.index(value.dtype), value.dim(), *value.shape]
        header[: len(sizes)] = torch.tensor(sizes)
        self._send(number, HEADER, header, to)
        self._send(number, ACTIVATION, value.contiguous(), to)

    def _receive_activation(self, number: int) -> Tensor:
        source = self._owner(self.world.stage - 1, number)
        header = torch.empty(2 + MAX_DIMENSIONS, dtype=torch.int64)
        dist.recv(header, source, tag=tag(number, HEADER))
        kind, dimensions, *sizes = header.tolist()
        value = torch.empty(sizes[:dimensions], dtype=SENDABLE_DTYPES[kind])
        dist.recv(value, source, tag=tag(number, ACTIVATION))
        return value.requires_grad_()

    def _tell_loss(self, number: int, loss: Tensor) -> None:
        self.losses[number] = loss
        for position in range(self.layout.processes):
            if position != self.world.position:
                self._send(number, LOSS, loss, position)

    def _loss_of(self, number: int) -> Tensor:
        self._hear_losses(number)
        self.losses.pop(self.begun - self.lag - 2, None)  # told an iteration ago
        return self.losses[number]

    def _hear_losses(self, until: int) -> None:
        """Receive the losses of all minibatches up to one from the processes that have them."""
        for number in range(self.heard, until + 1):
            owner = self._owner(self.layout.pipeline - 1, number)
            if owner != self.world.position:
                self.losses[number] = torch.empty((), dtype=torch.float64)
                dist.recv(self.losses[number], owner, tag=tag(number, LOSS))
        self.heard = max(self.heard, until + 1)


def tag(number: int, kind: int) -> int:
    """Return the tag of one thing that is sent of a minibatch."""
    return number % MINIBATCHES_WITH_TAGS * TAGS_PER_MINIBATCH + kind
