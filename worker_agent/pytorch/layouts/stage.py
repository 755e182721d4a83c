"""`open_stage`: makes this process one stage of its worker: model, optimizer, state and passes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from worker_agent.errors import UnsupportedModel
from worker_agent.frameworks import SharedModel, StrategyContext
from worker_agent.pytorch.layouts.chain import cut_model, keep_stage, refuse_batch_statistics
from worker_agent.pytorch.layouts.pipeline import PipelineSteps
from worker_agent.pytorch.layouts.stage_state import StageState, WholeState
from worker_agent.pytorch.layouts.tensor import ShardSpec, share_weights
from worker_agent.pytorch.layouts.world import WorkerWorld
from worker_agent.pytorch.reducer import Reducer, find_device


@dataclass(frozen=True, slots=True)
class ModelStage:
    """One stage of a worker.

    Attributes:
        shared: How the worker's processes share the model.
        world: Those processes.
        blocks: The blocks of this process.
        state: Their state.
    """

    shared: SharedModel
    world: WorkerWorld
    blocks: nn.Module
    state: StageState

    def model_steps(self, context: StrategyContext, reducer: Reducer) -> PipelineSteps:
        """Return what makes the passes of this process."""
        scaler = context.extra_state.get("scaler")
        return PipelineSteps(self.world, self.blocks, self.shared.loss, scaler, reducer)


def open_stage(context: StrategyContext, shared: SharedModel) -> ModelStage:
    """Meet the other processes of this worker, and leave this one its part of the model.

    Raises:
        UnsupportedModel: The model cannot be shared like this; the message says why.
    """
    layout, model, optimizer = shared.layout, context.model, context.optimizer
    if find_device(model.parameters()).type != "cpu":
        raise UnsupportedModel("models are shared on CPUs only so far: leave limits.layout out")
    if context.micro_batches > 1:
        raise UnsupportedModel(
            "job.step makes the micro-batches: leave micro_batches= out of job.prepare, and set"
            " limits.layout.micro_batches"
        )
    if layout.micro_batches > 1:
        refuse_batch_statistics(model)
    world = WorkerWorld(
        layout,
        shared.position,
        shared.directory,
        shared.link,
        has_scaler="scaler" in context.extra_state,
    )
    world.share_clipping()
    shards: dict[str, ShardSpec] = {}
    if layout.tensor > 1:
        shards = share_weights(model, optimizer, world.tensor_group, shared.tensor_plan)
    cut = cut_model(model, optimizer, shared.blocks, layout.pipeline)
    blocks = keep_stage(model, optimizer, cut, world.stage)
    if world.shard > 0:
        world.uncounted = [p for name, p in model.named_parameters() if name not in shards]
    whole = WholeState(cut.parts, shards, layout.tensor)
    state = StageState(model, optimizer, context.extra_state, whole, shared.link)
    return ModelStage(shared, world, blocks, state)
