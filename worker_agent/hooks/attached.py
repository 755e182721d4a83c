"""Attached: the agent inside a training process whose script knows nothing of it."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from worker_agent.hooks.data_parallel import DataParallel
from worker_agent.hooks.ending import LOST_THE_OTHERS, TRAINS_ALONE, is_loss_of_others
from worker_agent.hooks.exchange import Exchange
from worker_agent.hooks.patch import Patch
from worker_agent.hooks.rows import Measured
from worker_agent.hooks.sharded import Sharded
from worker_agent.hooks.trained import trained_by
from worker_agent.hooks.watch import Unread, Watch, harmless
from worker_agent.strategies.strategy import Clock

if TYPE_CHECKING:
    # It needs what reads and writes checkpoints, which most processes never do.
    from worker_agent.hooks.warm_restart import WarmRestart

log = logging.getLogger(__name__)

MET_ELSEWHERE = {"horovod", "deepspeed", "mpi4py"}
SURELY = 10  # steps after which a script that has not met the others will not meet them


class Attached:
    """The agent inside one training process.

    Args:
        rank: Rank of this process by its environment, for scripts that do not average.
        on_row: Takes every row, on the first rank, in a background thread.
        wish: File whose existence asks for a stop; None never stops.
        restart: What saves and gives back; None for a process that is never restarted.
    """

    def __init__(
        self,
        rank: int,
        on_row: Callable[[Measured], None],
        wish: Path | None = None,
        restart: WarmRestart | None = None,
    ) -> None:
        self.rank, self.on_row, self.wish, self.restart = rank, on_row, wish, restart
        self.watch = Watch(self._pass_on)
        self.parallel = DataParallel(self.watch, self._between_iterations)
        self.sharded = Sharded(self.watch)
        self.exchange: Exchange | None = None
        self.samples = self.steps = 0
        self.steps_of: Optimizer | None = None
        self.process = os.getpid()

    def patches(self) -> tuple[Patch, ...]:
        """Return what is to be replaced once torch is there; each may fail by itself."""
        made = () if self.restart is None else self.restart.inventory.patches()
        return (
            *made,
            *self.parallel.patches(),
            Patch(GradScaler, "scale", after=self._loss_is_scaled),
            # The store must not outlive the script's own group, nor end before the last rows.
            Patch(dist, "destroy_process_group", before=self._others_leave),
            # Lets the launcher tell a script that failed from one that others left alone.
            Patch(sys, "excepthook", before=self._script_fails),
        )

    def listen_to_steps(self) -> None:
        """Hear of every step of every optimizer."""
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self.after_step)

    def close(self) -> None:
        """Write down what is still on its way, for a moment at most."""
        exchange, self.exchange = self.exchange, None
        if exchange is not None and self.process == os.getpid():
            exchange.close()

    # What is patched.

    def _loss_is_scaled(self, scaler: Any, _: Any) -> None:
        self.watch.now.loss_scale = getattr(scaler, "_scale", None)

    def _others_leave(self, group: Any) -> None:
        if group is None or group is dist.group.WORLD:
            self.close()

    def _script_fails(self, kind: Any, error: BaseException, trace: Any) -> None:
        if self.restart is not None and is_loss_of_others(error):
            self.restart.say_how_it_ended(LOST_THE_OTHERS)

    # What happens in training.

    def after_step(self, optimizer: Optimizer, *_: Any) -> None:
        """An optimizer has stepped."""
        harmless(self.watch)(self._after_step)(optimizer)

    def _after_step(self, optimizer: Optimizer) -> None:
        if self.steps_of is None:
            self.steps_of = optimizer
        self.steps += 1
        if self.steps == SURELY and self.restart is not None and self._trains_alone(self.restart):
            self.restart.say_how_it_ended(TRAINS_ALONE)
        if self.watch.is_averaged or optimizer is self.steps_of:
            self.watch.step_ends()

    def _trains_alone(self, restart: WarmRestart) -> bool:
        """Whether this is one of several processes that each train the whole job."""
        is_met = self.watch.is_averaged or has_company() or MET_ELSEWHERE & sys.modules.keys()
        return restart.settings.workers > 1 and not is_met

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Without DDP this is the only place where all of the iteration before is done."""
        if self.restart is None or self.watch.is_averaged or has_company():
            return
        if self.restart.is_due:
            harmless(self.watch)(self._take_over_alone)(self.restart, optimizer)
        if self.exchange is not None and self.exchange.is_time_to_stop(0):
            self._stop(self.exchange, self.restart, trained_by(optimizer))

    def _take_over_alone(self, restart: WarmRestart, optimizer: Optimizer) -> None:
        clock = restart.take_over(trained_by(optimizer))
        if clock is not None:
            self._go_on_from(clock)
            optimizer.zero_grad(set_to_none=True)  # it is of the weights before

    def _between_iterations(self, module: DistributedDataParallel) -> None:
        """All that belongs to the iteration before is done, on every rank."""
        if self.restart is None:
            return
        if self.restart.is_due:
            clock = self.restart.take_over_together(module.module)
            if clock is not None:
                self._go_on_from(clock)
        if self.exchange is not None and self.exchange.is_time_to_stop(self.watch.reductions):
            self._stop(self.exchange, self.restart, module.module)
        if self.exchange is not None and self.exchange.rank == 0:
            self.restart.save_if_due(module.module, self._clock)

    def _go_on_from(self, clock: Clock) -> None:
        self.watch.iteration = clock.iteration
        self.samples = clock.samples

    def _stop(self, exchange: Exchange, restart: WarmRestart, model: nn.Module | None) -> None:
        """Save and end this process; all ranks are here."""
        try:
            exchange.leave_after(lambda: self._save(restart, model))
        except Exception:
            log.exception("scavenger: no checkpoint was written; an older one will have to do")
        exchange.close()
        restart.leave()

    def _save(self, restart: WarmRestart, model: nn.Module | None) -> None:
        restart.save(model, self._clock)
        restart.finish()

    @property
    def _clock(self) -> Clock:
        return Clock(self.watch.iteration, self.samples)

    # What was measured.

    def _pass_on(self, unread: Unread) -> None:
        """Queue one part for the exchange, which begins with the first."""
        if self.process != os.getpid():
            return
        if self.exchange is None:
            self.exchange = self._open_exchange()
        self.samples += unread.part.samples * self.exchange.workers
        self.exchange.queue.append(unread)

    def _open_exchange(self) -> Exchange:
        if not self.watch.is_averaged or not has_company():
            on_row = self.on_row if self.rank == 0 else ignore
            return Exchange(0, 1, None, on_row, self.wish)
        store = dist.distributed_c10d._get_default_store()
        return Exchange(dist.get_rank(), dist.get_world_size(), store, self.on_row, self.wish)


def has_company() -> bool:
    """Whether this process trains with others."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def ignore(_: Measured) -> None:
    """Take a row that somebody else reports."""
