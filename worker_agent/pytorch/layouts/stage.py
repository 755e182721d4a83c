"""`open_stage`: makes this process one stage of its worker: model, optimizer, state and passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from worker_agent.errors import UnsupportedModel
from worker_agent.frameworks import SharedModel, StrategyContext
from worker_agent.pytorch.layouts.asynchronous import AsynchronousPipeline
from worker_agent.pytorch.layouts.chain import cut_model, keep_stage, refuse_batch_statistics
from worker_agent.pytorch.layouts.pipeline import PipelineSteps
from worker_agent.pytorch.layouts.sharded import ShardedWeights
from worker_agent.pytorch.layouts.stage_state import StageState, WholeState
from worker_agent.pytorch.layouts.tensor import ShardSpec, share_weights
from worker_agent.pytorch.layouts.world import WorkerWorld, refuse_clipping
from worker_agent.pytorch.reducer import Reducer, find_device


@dataclass(frozen=True, slots=True)
class ModelStage:
    """One stage of a worker.

    Attributes:
        shared: How the worker's processes share the model.
        world: Those processes.
        chunks: The blocks of this process: one module, or one for each chunk if interleaved.
        weights: Their weights, where several processes have parts of them; else None.
        state: Their state.
    """

    shared: SharedModel
    world: WorkerWorld
    chunks: tuple[nn.Module, ...]
    weights: ShardedWeights | None
    state: StageState

    @property
    def agreement(self) -> WorkerWorld | None:
        """What the processes agree on at the end of an iteration, where it ends in all of them."""
        return None if self.shared.layout.is_asynchronous else self.world

    def model_steps(
        self, context: StrategyContext, reducer: Reducer
    ) -> PipelineSteps | AsynchronousPipeline:
        """Return what makes the passes of this process."""
        if self.shared.layout.is_asynchronous:
            return AsynchronousPipeline(
                self.world, self.chunks[0], context.optimizer, self.shared.loss
            )
        return PipelineSteps(
            self.world,
            self.chunks,
            self.shared.loss,
            context.extra_state.get("scaler"),
            reducer,
            self.weights,
        )


def open_stage(context: StrategyContext, shared: SharedModel) -> ModelStage:
    """Meet the other processes of this worker, and leave this one its part of the model.

    Raises:
        UnsupportedModel: The model cannot be shared like this; the message says why.
    """
    layout, model, optimizer = shared.layout, context.model, context.optimizer
    if find_device(model.parameters()).type != "cpu":
        raise UnsupportedModel(
            "models are shared on CPUs only so far: leave limits.layout and strategy: pipedream out"
        )
    if context.micro_batches > 1:
        raise UnsupportedModel(
            "job.step makes the micro-batches: leave micro_batches= out of job.prepare, and set"
            " limits.layout.micro_batches"
        )
    if layout.batch_parts_per_worker > 1:
        refuse_batch_statistics(model, layout)
    world = WorkerWorld(
        layout,
        shared.position,
        shared.directory,
        shared.link,
        has_scaler="scaler" in context.extra_state,
    )
    if layout.is_asynchronous:
        refuse_scaler(world)
        refuse_clipping()
    else:
        world.share_clipping()
    shards: dict[str, ShardSpec] = {}
    if layout.tensor > 1:
        shards = share_weights(model, optimizer, world.tensor_group, shared.tensor_plan)
    cut = cut_model(model, optimizer, shared.blocks, layout)
    chunks = keep_stage(model, optimizer, cut, world.stage)
    weights = None
    parameters: Mapping[str, Tensor] = dict(model.named_parameters())
    if layout.shard > 1:
        parts = chain_of(model, shared.blocks) if layout.pipeline == 1 else cut.chunks[world.stage]
        weights = ShardedWeights(model, chunks[0], parts, optimizer, world.shard_group)
        parameters = weights.parameters
    if world.tensor_index > 0:
        world.uncounted = [p for name, p in parameters.items() if name not in shards]
    whole = WholeState(cut.parts, shards, layout)
    state = StageState(model, optimizer, context.extra_state, parameters, whole, shared.link)
    return ModelStage(shared, world, chunks, weights, state)


def refuse_scaler(world: WorkerWorld) -> None:
    """Raise UnsupportedModel if the loss of an asynchronous pipeline would be scaled."""
    if world.has_scaler:
        raise UnsupportedModel(
            "an asynchronous pipeline cannot skip a step in all stages: train without a GradScaler,"
            " or write limits.layout in place of strategy: pipedream"
        )


def chain_of(model: nn.Module, blocks: Sequence[Any] | None) -> Sequence[nn.Module]:
    """Return the parts of a model whose weights can be gathered one after the other."""
    if blocks is not None:
        return list(blocks)
    return list(model) if isinstance(model, nn.Sequential) else [model]
