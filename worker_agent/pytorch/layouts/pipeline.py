"""`PipelineSteps`: one forward and backward pass through the stages of a worker (1F1B)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from worker_agent.pytorch.layouts.world import WorkerWorld
from worker_agent.pytorch.reducer import Reducer


class PipelineSteps:
    """One pass of a worker's batch through its stages, in micro-batches.

    Args:
        world: The processes of the worker.
        stage: The blocks of this process.
        loss: Mean loss over a batch, from outputs and targets.
        scaler: The script's ``GradScaler``, if any.
        reducer: What averages the gradients with other workers.
    """

    def __init__(
        self,
        world: WorkerWorld,
        stage: nn.Module,
        loss: Callable[[Any, Any], Tensor],
        scaler: Any,
        reducer: Reducer,
    ) -> None:
        self.world, self.blocks, self.loss, self.scaler = world, stage, loss, scaler
        self.reducer = reducer
        self.is_first = world.stage == 0
        self.is_last = world.stage == world.layout.pipeline - 1
        self.schedule: Schedule1F1B | ScheduleGPipe | None = None
        self.scheduled: tuple[int, ...] = ()  # what it was built for
        self.parts = 1
        self.noise_every = self.iterations = 0

    def begin_generation(self, noise_every: int) -> None:
        """Measure noise by micro-batches in one of so many iterations of a lone worker; 0 never."""
        self.noise_every, self.iterations = noise_every, 0

    def step(self, inputs: Tensor, targets: Any) -> Tensor:
        """Train on a batch, which every process of the worker passes; returns its loss."""
        self.parts = micro_batch_count(len(inputs), self.world.layout.micro_batches)
        every = self.noise_every if self.reducer.workers == 1 else 0
        is_noisy = self.iterations % every == 0 if every else False
        self.reducer.expect_passes(self.parts, as_shards=is_noisy)
        self.iterations += self.reducer.part.is_last
        if self.scaler is not None:  # it makes its scale when it is first asked for
            self.scaler.scale(torch.zeros((), device=inputs.device))
        losses: list[Tensor] = []
        with torch.enable_grad():
            if self.is_first and self.is_last:
                whole: Any = self._part_of_loss(self.blocks(inputs), targets)
                whole.backward()
                losses = [whole]
            else:
                schedule, given = self._schedule(inputs), (inputs,) if self.is_first else ()
                if self.is_last:
                    schedule.step(*given, target=targets, losses=losses)
                else:
                    schedule.step(*given)
        self.reducer.finish()
        loss = torch.zeros((), dtype=torch.float64)
        if self.is_last:
            loss = torch.stack([each.detach() for each in losses]).sum().to("cpu", torch.float64)
            if self.scaler is not None:
                loss /= self.scaler.get_scale()
        self.world.share(loss, self.world.layout.processes - 1)
        return loss

    def predict(self, inputs: Tensor) -> Any:
        """Return the model's outputs on all processes, each of which passes the inputs."""
        value = inputs
        with torch.no_grad():
            for stage in range(self.world.layout.pipeline):
                source = stage * self.world.layout.tensor
                described: list[Any] = [None]
                if stage == self.world.stage:
                    value = self.blocks(value)
                    described = [(tuple(value.shape), value.dtype)]
                dist.broadcast_object_list(described, source)
                if stage != self.world.stage:
                    shape, dtype = described[0]
                    value = torch.empty(shape, dtype=dtype)
                value = value.contiguous()
                self.world.share(value, source)
        return value

    def _schedule(self, inputs: Tensor) -> Schedule1F1B | ScheduleGPipe:
        """Return the schedule for batches of a shape: one of another shape would end the process.

        Sums of micro-batches' gradients travel, so each loss is divided here and not afterwards.
        """
        shape = (self.parts, self.blocks.training, *inputs.shape)
        if self.schedule is None or shape != self.scheduled:
            stage = PipelineStage(
                self.blocks,
                self.world.stage,
                self.world.layout.pipeline,
                inputs.device,
                group=self.world.pipeline_group,
            )
            # PyTorch's 1F1B refuses fewer micro-batches than stages; with them GPipe does the same.
            kind = Schedule1F1B if self.parts >= stage.num_stages else ScheduleGPipe
            self.scheduled = shape
            self.schedule = kind(stage, self.parts, loss_fn=self._part_of_loss, scale_grads=False)
        return self.schedule

    def _part_of_loss(self, outputs: Any, targets: Any) -> Tensor:
        loss = self.loss(outputs, targets) / self.parts
        scaled: Tensor = loss if self.scaler is None else self.scaler.scale(loss)
        return scaled


def micro_batch_count(samples: int, most: int) -> int:
    """Return the largest number of equal parts that a batch has, at most as many as wanted.

    >>> micro_batch_count(12, 8), micro_batch_count(7, 4)
    (6, 1)
    """
    return next(parts for parts in range(min(most, samples), 0, -1) if samples % parts == 0)
