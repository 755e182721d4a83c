"""`PipelineSteps`: forward and backward passes through the stages of a worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleLoopedBFS,
)
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.utils._pytree import tree_map

from scavenger.layout import Layout
from worker_agent.errors import UnsupportedModel
from worker_agent.pytorch.layouts.sharded import ShardedWeights, local_part
from worker_agent.pytorch.layouts.world import WorkerWorld
from worker_agent.pytorch.reducer import Reducer

PassSchedule = Schedule1F1B | ScheduleGPipe | ScheduleInterleaved1F1B | ScheduleLoopedBFS


class PipelineSteps:
    """One pass of a worker's batch through its stages, in micro-batches.

    Args:
        world: The processes of the worker.
        chunks: The blocks of this process, a module for each chunk of the model that it has.
        loss: Mean loss over a batch, from outputs and targets.
        scaler: The script's ``GradScaler``, if any.
        reducer: What averages the gradients with other workers.
        weights: The stage's weights, where several processes have parts of them.
    """

    def __init__(
        self,
        world: WorkerWorld,
        chunks: Sequence[nn.Module],
        loss: Callable[[Any, Any], Tensor],
        scaler: Any,
        reducer: Reducer,
        weights: ShardedWeights | None = None,
    ) -> None:
        self.world, self.chunks, self.loss, self.scaler = world, chunks, loss, scaler
        self.reducer, self.weights = reducer, weights
        self.is_first = world.stage == 0
        self.is_last = world.stage == world.layout.pipeline - 1
        self.schedule: PassSchedule | None = None
        self.scheduled: tuple[int, ...] = ()  # what it was built for
        self.parts, self.weight = 1, 1.0
        self.noise_every = self.iterations = 0
        self.staleness = None  # all gradients are of this iteration

    def begin_generation(self, noise_every: int) -> None:
        """Measure noise by micro-batches in one of so many iterations of a lone worker; 0 never."""
        self.noise_every, self.iterations = noise_every, 0

    def step(self, inputs: Tensor, targets: Any) -> Tensor:
        """Train on a batch, which every process of the worker passes; returns its loss."""
        layout = self.world.layout
        share = share_of_batch(len(inputs), self.world.shard_index, layout.shard)
        self.weight, self.parts = share.weight, 1
        if len(inputs) % layout.shard == 0:  # else the processes would make unequal numbers
            self.parts = micro_batch_count(len(inputs) // layout.shard, layout.micro_batches)
        if layout.shard > 1:
            inputs, targets = tree_map(lambda each: each[share.samples], (inputs, targets))
        self.reducer.expect_passes(
            self.parts if self.weights is None else 1,
            as_shards=self._is_noisy,
            passes_per_part=sum(map(is_trained, self.chunks)),
        )
        self.iterations += self.reducer.part.is_last
        if self.weights is None:
            loss = self._passes(inputs, targets)
            self.reducer.finish()
        else:  # gradients of micro-batches add up before their parts are handed out
            self.weights.begin()
            loss = self._passes(inputs, targets)
            self.weights.take_gradients()
            self.reducer.take_pass()
            self.reducer.finish()
            self.weights.show_gradients()
        is_told = self.is_last and self.world.tensor_index == 0
        return self.world.total(loss / layout.shard if is_told else torch.zeros_like(loss))

    @property
    def _is_noisy(self) -> bool:
        """Whether a lone worker measures noise in this iteration, by its micro-batches."""
        if self.noise_every == 0 or self.reducer.workers > 1 or self.weights is not None:
            return False
        return self.iterations % self.noise_every == 0

    def _passes(self, inputs: Tensor, targets: Any) -> Tensor:
        """Make all passes of this process; returns the loss of its samples, 0 but in the last."""
        if self.scaler is not None:  # it makes its scale when it is first asked for
            self.scaler.scale(torch.zeros((), device=inputs.device))
        losses: list[Tensor] = []
        with torch.enable_grad(), loss_parallel():
            if self.is_first and self.is_last:
                whole: Any = self._part_of_loss(self.chunks[0](inputs), targets)
                whole.backward()
                losses = [whole]
            else:
                schedule, given = self._schedule(inputs), (inputs,) if self.is_first else ()
                if self.is_last:
                    schedule.step(*given, target=targets, losses=losses)
                else:
                    schedule.step(*given)
        self.world.tensor_group.forget()
        loss = torch.zeros((), dtype=torch.float64)
        if losses:
            parts = [local_part(each.detach()) for each in losses]
            loss = torch.stack(parts).sum().to("cpu", torch.float64)
            if self.scaler is not None:
                loss /= self.scaler.get_scale()
        return loss

    def predict(self, inputs: Tensor) -> Any:
        """Return the model's outputs on all processes, each of which passes the inputs."""
        return predict_by_stages(self.world, self.chunks, inputs)

    def drain(self) -> None:
        """Do nothing: each iteration ends in all stages."""

    def _schedule(self, inputs: Tensor) -> PassSchedule:
        """Return the schedule for batches of a shape: one of another shape would end the process.

        Sums of micro-batches' gradients travel, so each loss is divided here and not afterwards.
        """
        layout = self.world.layout
        shape = (self.parts, self.chunks[0].training, *inputs.shape)
        if self.schedule is None or shape != self.scheduled:
            stages = [
                PipelineStage(
                    chunk,
                    number,
                    layout.chunk_count,
                    inputs.device,
                    group=self.world.pipeline_group,
                )
                for chunk, number in zip(
                    self.chunks, layout.chunks_of(self.world.stage), strict=True
                )
            ]
            kind: Any = schedule_kind(layout, self.parts)
            given: Any = stages if layout.chunks > 1 else stages[0]
            self.scheduled = shape
            self.schedule = kind(given, self.parts, loss_fn=self._part_of_loss, scale_grads=False)
        return self.schedule

    def _part_of_loss(self, outputs: Any, targets: Any) -> Tensor:
        try:
            loss = self.loss(outputs, targets) * (self.weight / self.parts)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            if not isinstance(outputs, DTensor):
                raise
            raise UnsupportedModel(
                "the loss cannot be computed from scores that stay divided, as"
                " torch.nn.functional.cross_entropy can: write head instead of vocabulary in"
                " tensor_plan, and they are put together before it"
            ) from error
        scaled: Tensor = loss if self.scaler is None else self.scaler.scale(loss)
        return scaled


def schedule_kind(layout: Layout, parts: int) -> type[PassSchedule]:
    """Return PyTorch's schedule for so many micro-batches, fewer than asked for if need be.

    Its 1F1B refuses fewer micro-batches than stages; with them GPipe does the same. An interleaved
    pipeline wants a multiple of the stages; else all forward passes of a chunk follow each other.
    """
    if layout.schedule == "interleaved":
        return ScheduleLoopedBFS if parts % layout.pipeline else ScheduleInterleaved1F1B
    is_1f1b = layout.schedule == "1f1b" and parts >= layout.pipeline
    return Schedule1F1B if is_1f1b else ScheduleGPipe


def is_trained(module: nn.Module) -> bool:
    """Whether a backward pass gives any parameter a gradient."""
    return any(parameter.requires_grad for parameter in module.parameters())


def predict_by_stages(world: WorkerWorld, chunks: Sequence[nn.Module], inputs: Tensor) -> Any:
    """Return the model's outputs on all processes of a worker, each of which passes the inputs."""
    value: Any = inputs
    with torch.no_grad():
        if world.layout.pipeline == 1:  # each process computes all of them
            return tree_map(whole_tensor, chunks[0](value))
        for number in range(world.layout.chunk_count):
            place, stage = divmod(number, world.layout.pipeline)
            source = world.place(stage)
            described: list[Any] = [None]
            if stage == world.stage:
                value = whole_tensor(chunks[place](value))
                described = [(tuple(value.shape), value.dtype)]
            dist.broadcast_object_list(described, source)
            if stage != world.stage:
                shape, dtype = described[0]
                value = torch.empty(shape, dtype=dtype)
            value = value.contiguous()
            world.share(value, source)
    return value


def whole_tensor(value: Any) -> Any:
    """Put a tensor together that stayed divided; anything else is returned as it is."""
    return value.full_tensor() if isinstance(value, DTensor) else value


@dataclass(frozen=True, slots=True)
class BatchShare:
    """What one of several processes takes of a batch.

    Attributes:
        samples: Its samples; at least one.
        weight: What its mean loss counts in a plain mean over the processes.
    """

    samples: slice
    weight: float


def share_of_batch(samples: int, index: int, count: int) -> BatchShare:
    """Return the share of one of so many processes.

    >>> share_of_batch(8, 1, 2)
    BatchShare(samples=slice(4, 8, None), weight=1.0)
    """
    low, high = samples * index // count, samples * (index + 1) // count
    if low == high:  # every process takes part in gathering: it computes a sample that counts 0
        return BatchShare(slice(0, 1), 0.0)
    return BatchShare(slice(low, high), (high - low) * count / samples)


def micro_batch_count(samples: int, most: int) -> int:
    """Return the largest number of equal parts that a batch has, at most as many as wanted.

    >>> micro_batch_count(12, 8), micro_batch_count(7, 4)
    (6, 1)
    """
    return next(parts for parts in range(min(most, samples), 0, -1) if samples % parts == 0)
