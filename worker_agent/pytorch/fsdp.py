"""Instruments FSDP2 (``fully_shard``): norms of each module's gradient around its reduce-scatter.

Before it, a rank holds its whole local gradient; after it, its shard of the average; the shards'
squared norms add up when the rows of all ranks are combined. The all-gathers of weights count as
compute time, because they overlap with it. Sharding in two dimensions is not measured.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Variable

from worker_agent.launcher.patch import Patch
from worker_agent.launcher.step_timer import StepTimer
from worker_agent.pytorch.ddp import count_samples
from worker_agent.pytorch.device_clock import make_clock
from worker_agent.pytorch.norms import gradient_norm
from worker_agent.step_clock import Mark

log = logging.getLogger(__name__)


class FsdpInstrumentation:
    """Measures around the reduce-scatters of this process.

    Args:
        timer: Told what happens.
    """

    def __init__(self, timer: StepTimer) -> None:
        self.timer = timer
        self.is_in_backward = self.has_clock = False
        self.is_plain = self.has_complained = False
        self.wait: tuple[Mark, Mark] | None = None
        self.began_at: Mark = 0.0
        self.before_reduce = timer.guarded(self._before_reduce)
        self.after_reduce = timer.guarded(self._after_reduce)
        self.end = timer.guarded(self._end)
        self.begin = timer.guarded(self._begin)

    def patches(self) -> tuple[Patch, ...]:
        from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter
        from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

        return (
            Patch(
                DefaultReduceScatter, "__call__", before=self.before_reduce, after=self.after_reduce
            ),
            Patch(FSDPState, "_root_pre_forward", before=self.begin),
        )

    def _begin(self, state: Any, module: Any, arguments: Any, options: Any) -> None:
        is_outermost = state._state_ctx.iter_forward_root is None
        if is_outermost and module.training and torch.is_grad_enabled():
            self._follow(module)
            self.timer.forward_starts(count_samples(arguments, options))

    def _follow(self, module: Any) -> None:
        """Mark times on the device of the first module that is seen."""
        if not self.has_clock:
            self.has_clock = True
            self.timer.use_clock(make_clock(next(module.parameters()).device))

    def _before_reduce(
        self,
        scatter: Any,
        shard: Tensor,
        gradient: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool,
    ) -> None:
        self.is_plain = op == dist.ReduceOp.AVG and group.size() == dist.get_world_size()
        if not self.is_plain:
            self._complain()
            return
        if not self.is_in_backward:
            self.is_in_backward = True
            self.timer.backward_starts()
            engine = Variable._execution_engine
            engine.queue_callback(lambda: engine.queue_callback(self.end))
        self.timer.current.local_norms.append(gradient_norm(gradient))
        if self.wait is not None:
            self.timer.current.waits.append(self.wait)
        self.wait = None
        self.timer.gradients_are_ready()
        self.began_at = self.timer.clock.mark()

    def _after_reduce(self, scatter: Any, shard: Tensor, *_: Any) -> None:
        if self.is_plain:
            self.wait = self.began_at, self.timer.clock.mark()
            self.timer.current.mean_norms.append(gradient_norm(shard))

    def _end(self) -> None:
        self.is_in_backward = False
        self.wait = None  # that of the last one lies between ready and averaged
        self.timer.gradients_are_averaged()

    def _complain(self) -> None:
        if not self.has_complained:
            self.has_complained = True
            log.warning("scavenger: unmeasured: FSDP2 in float16 or over several dimensions")
