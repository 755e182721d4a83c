"""`Instrumentation`: measures a PyTorch script that does not import the agent.

``install`` is called when a script of ``agent run`` has imported torch. Every patch is tried by
itself: a function that this version of PyTorch does not have goes unmeasured, which is logged
once, and the script runs as before.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import PrefixStore, Store
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from worker_agent.launcher.announcement import Announcement
from worker_agent.launcher.environment import (
    LOST_PEERS,
    NOT_DISTRIBUTED,
    STEPS_BEFORE_VERDICT,
    is_peer_loss,
    stop_process,
    write_outcome,
)
from worker_agent.launcher.patch import Patch
from worker_agent.launcher.rank_aggregator import STORE_TIMEOUT, RankAggregator
from worker_agent.launcher.step_records import MeasuredStep, StepFileWriter
from worker_agent.launcher.step_timer import PendingStep, RunningIteration, StepTimer
from worker_agent.pytorch.ddp import DdpInstrumentation
from worker_agent.pytorch.device_clock import make_clock
from worker_agent.pytorch.fsdp import FsdpInstrumentation
from worker_agent.pytorch.keras import KerasInstrumentation, KerasOptimizerState
from worker_agent.pytorch.norms import start_reading
from worker_agent.settings import InstrumentationSettings, read_instrumentation_settings
from worker_agent.state.progress import TrainingProgress

if TYPE_CHECKING:
    # It needs what reads and writes checkpoints, which most processes never do.
    from worker_agent.pytorch.warm_restart import WarmRestart

log = logging.getLogger(__name__)

OTHER_COMMUNICATION = {"horovod", "deepspeed", "mpi4py"}


class Instrumentation:
    """The agent inside one training process.

    Args:
        rank: Rank of this process by its environment, for scripts that do not average.
        on_row: Takes every row, on the first rank, in a background thread.
        stop_request: File whose existence requests a stop; None never stops.
        restart: Saves and restores state; None for a process that is never restarted.
        on_metrics: Takes the metrics that ``fit`` of Keras tells, in the training thread.
    """

    def __init__(
        self,
        rank: int,
        on_row: Callable[[MeasuredStep], None],
        stop_request: Path | None = None,
        restart: WarmRestart | None = None,
        on_metrics: Callable[[Mapping[str, float]], None] = lambda _: None,
    ) -> None:
        self.rank, self.on_row = rank, on_row
        self.stop_request, self.restart = stop_request, restart
        self.timer = StepTimer(self._pass_on, start_reading)
        self.after_step = self.timer.guarded(self._after_step)
        self.parallel = DdpInstrumentation(self.timer, self._between_iterations)
        self.sharded = FsdpInstrumentation(self.timer)
        self.keras = KerasInstrumentation(
            self.timer,
            before_step=self._before_keras_step,
            after_step=self.timer.guarded(self._after_keras_step),
            on_metrics=on_metrics,
            on_resume=self._script_resumes,
        )
        self.announce = Announcement(rank)
        self.aggregator: RankAggregator | None = None
        self.samples = self.steps = 0
        self.steps_of: Any = None  # an optimizer of PyTorch or Keras
        self.process = os.getpid()

    def patches(self) -> tuple[Patch, ...]:
        """Return the patches to apply once torch is imported; each may fail by itself."""
        made = () if self.restart is None else self.restart.tracked.patches()
        return (
            *made,
            *self.parallel.patches(),
            Patch(GradScaler, "scale", after=self._loss_is_scaled),
            # The store must not outlive the script's own group, nor close before the last rows.
            Patch(dist, "destroy_process_group", before=self._group_ends),
            # Lets the launcher tell a script that failed from one that lost its peers.
            Patch(sys, "excepthook", before=self._script_fails),
        )

    def listen_to_steps(self) -> None:
        """Register hooks on the steps of all optimizers."""
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self.after_step)

    def close(self) -> None:
        """Write rows that are still on their way, for a few seconds at most."""
        aggregator, self.aggregator = self.aggregator, None
        if aggregator is not None and self.process == os.getpid():
            aggregator.close()

    def say_if_unmeasured(self, rows: Path, size: int) -> None:
        """As the process ends, say that nothing was measured.

        Args:
            rows: The file of rows.
            size: What it held before; a process that this one has started may have added rows.
        """
        if not self.steps and self.process == os.getpid() and size == size_of(rows):
            self.announce("unmeasured: no step of an optimizer was seen")

    # What is patched.

    def _loss_is_scaled(self, scaler: Any, _: Any) -> None:
        self.timer.current.loss_scale = getattr(scaler, "_scale", None)

    def _group_ends(self, group: Any) -> None:
        if group is None or group is dist.group.WORLD:
            self.close()

    def _script_fails(self, kind: Any, error: BaseException, trace: Any) -> None:
        if self.restart is not None and is_peer_loss(error):
            write_outcome(self.restart.settings, LOST_PEERS)

    def _script_resumes(self) -> None:
        if self.restart is not None:
            self.restart.tracked.has_resumed = True

    # What happens in training.

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if self.steps_of is None:
            self.steps_of = optimizer
            self.process = os.getpid()  # a script may import torch, and train in forked processes
            self._announce_measured()
            self.timer.use_clock(make_clock(device_of(optimizer)))
        self.steps += 1
        if (
            self.steps == STEPS_BEFORE_VERDICT
            and self.restart is not None
            and self._trains_alone(self.restart)
        ):
            write_outcome(self.restart.settings, NOT_DISTRIBUTED)
        if self.timer.was_ever_averaged or optimizer is self.steps_of:
            self.timer.step_ends()

    def _announce_measured(self) -> None:
        is_averaged = self.timer.was_ever_averaged and is_distributed()
        replicas = dist.get_world_size() if is_averaged else 1
        if self.keras.is_loaded and not (is_averaged and dist.get_rank()):
            self.announce(f"measured: Keras on PyTorch, replicas: {replicas}")

    def _trains_alone(self, restart: WarmRestart) -> bool:
        """Whether this is one of several processes of which each trains the whole job."""
        is_met = self._is_together or OTHER_COMMUNICATION & sys.modules.keys()
        return restart.settings.workers > 1 and not is_met

    @property
    def _is_together(self) -> bool:
        """Whether this process averages, or might as well."""
        return self.timer.was_ever_averaged or is_distributed()

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Without DDP, save, restore or stop here: the previous iteration is complete."""
        if self.restart is None or self._is_together:
            return
        if self.restart.is_restore_due:
            self.timer.guarded(self._restore_alone)(self.restart, optimizer)
        self._stop_if_asked(self.restart, optimizer)

    def _stop_if_asked(
        self, restart: WarmRestart, optimizer: Optimizer | KerasOptimizerState
    ) -> None:
        if self.aggregator is not None and self.aggregator.is_time_to_stop(0):
            self._stop(self.aggregator, restart, find_model(optimizer))

    def _restore_alone(self, restart: WarmRestart, optimizer: Optimizer) -> None:
        progress = restart.restore(find_model(optimizer))
        if progress is not None:
            self._go_on_from(progress)
            optimizer.zero_grad(set_to_none=True)  # it is of the weights before

    def _before_keras_step(self, optimizer: Any) -> None:
        if self.restart is not None:
            self.restart.tracked.note_keras(optimizer)
            if not self._is_together:
                self._stop_if_asked(self.restart, KerasOptimizerState(optimizer))

    def _after_keras_step(self, optimizer: Any) -> None:
        """Restore after the first step, which has made the variables that a checkpoint is of."""
        progress = None
        if self.restart is not None and self.restart.is_restore_due:
            progress = self._restore_keras(self.restart, KerasOptimizerState(optimizer))
        if progress is None:
            self._after_step(optimizer)
        else:
            self._go_on_from(progress)

    def _restore_keras(
        self, restart: WarmRestart, optimizer: KerasOptimizerState
    ) -> TrainingProgress | None:
        if not self._is_together:
            return restart.restore(find_model(optimizer))
        parallel = next(iter(self.parallel.listeners), None)
        return None if parallel is None else restart.restore_on_all_ranks(parallel.module)

    def _between_iterations(self, module: DistributedDataParallel) -> None:
        """With DDP, save, restore or stop here: the previous iteration is complete on all ranks."""
        if self.restart is None:
            return
        # An optimizer of Keras has its variables after its first step only, and is restored there.
        if self.restart.is_restore_due and self.restart.tracked.optimizers:
            progress = self.restart.restore_on_all_ranks(module.module)
            if progress is not None:
                self._go_on_from(progress)
        if self.aggregator is not None and self.aggregator.is_time_to_stop(self.timer.reductions):
            self._stop(self.aggregator, self.restart, module.module)
        if self.aggregator is not None and self.aggregator.rank == 0:
            self.restart.save_if_due(module.module, self._progress)

    def _go_on_from(self, progress: TrainingProgress) -> None:
        self.timer.iteration = progress.iteration
        self.timer.current = RunningIteration()  # what was seen of it is of the weights before
        self.samples = progress.samples

    def _stop(
        self, aggregator: RankAggregator, restart: WarmRestart, model: nn.Module | None
    ) -> None:
        """Save and end this process; all ranks do so here."""
        try:
            aggregator.leave_after(lambda: self._save(restart, model))
        except Exception:
            log.exception("scavenger: no checkpoint was written; the restart uses an older one")
        aggregator.close()
        stop_process(restart.settings)

    def _save(self, restart: WarmRestart, model: nn.Module | None) -> None:
        restart.save(model, self._progress)
        restart.wait_for_write()

    @property
    def _progress(self) -> TrainingProgress:
        return TrainingProgress(self.timer.iteration, self.samples)

    # What was measured.

    def _pass_on(self, unread: PendingStep) -> None:
        """Queue one step for the aggregator, which starts with the first one."""
        if self.process != os.getpid():
            return
        if self.aggregator is None:
            self.aggregator = self._open_aggregator()
        self.samples += unread.samples * self.aggregator.workers
        self.aggregator.queue.put(unread)

    def _open_aggregator(self) -> RankAggregator:
        if not self.timer.was_ever_averaged or not is_distributed():
            on_row = self.on_row if self.rank == 0 else lambda _: None
            return RankAggregator(0, 1, None, on_row, self.stop_request)
        store = dist.distributed_c10d._get_default_store()
        connect = partial(GroupStore, store)
        rank, workers = dist.get_rank(), dist.get_world_size()
        return RankAggregator(rank, workers, connect, self.on_row, self.stop_request)


def is_distributed() -> bool:
    """Whether this process trains with others."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


class GroupStore:
    """A `SharedStore` over the store that ``torch.distributed`` met at, by a connection of its own.

    The script may block in its own connection, which must not hold up this one.
    """

    def __init__(self, store: Store) -> None:
        connect: Any = store
        own: Store = connect.clone()
        own.set_timeout(timedelta(seconds=STORE_TIMEOUT))
        self._store: Any = PrefixStore("scavenger", own)  # its stub knows no bytes

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        return bytes(self._store.get(key))

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._store.check(list(keys)))

    def delete(self, key: str) -> None:
        self._store.delete_key(key)


INSTALLED: list[Instrumentation] = []


def install() -> None:
    """Patch the torch that was just imported, if the launcher wants measurements."""
    settings = read_instrumentation_settings()
    if settings.audit is not None:
        from worker_agent.pytorch.read_audit import ReadAudit

        ReadAudit(Path(settings.audit)).listen()
    if settings.profile is not None:
        from worker_agent.pytorch.block_profile import BlockProfiler

        BlockProfiler(Path(settings.profile)).listen()
    if settings.rows is None or INSTALLED:
        return
    attached = create_instrumentation(settings, StepFileWriter(Path(settings.rows), "pytorch"))
    INSTALLED.append(attached)
    for patch in attached.patches():
        try_patch(patch.apply)
    try_patch(attached.listen_to_steps)
    atexit.register(attached.close)


def install_fsdp() -> None:
    """Patch FSDP2, which was just imported."""
    for attached in INSTALLED:
        for patch in attached.sharded.patches():
            try_patch(patch.apply)


def install_keras() -> None:
    """Patch the optimizers and ``fit`` of Keras on PyTorch, which were just imported."""
    trainer = sys.modules["keras.src.backend.torch.trainer"]
    rows = read_instrumentation_settings().rows
    for attached in INSTALLED:
        for patch in attached.keras.patches(trainer):
            try_patch(patch.apply)
        if rows is not None:
            atexit.register(attached.say_if_unmeasured, Path(rows), size_of(Path(rows)))


def size_of(file: Path) -> int:
    """Return the bytes of a file, 0 if there is none."""
    return file.stat().st_size if file.exists() else 0


def create_instrumentation(
    settings: InstrumentationSettings, rows: StepFileWriter
) -> Instrumentation:
    """Return the instrumentation of this process, with restarts only if a launcher wants them."""
    if settings.stop_request is None:
        return Instrumentation(settings.rank, rows.write, on_metrics=rows.add_metrics)
    from worker_agent.pytorch.warm_restart import TrackedObjects, WarmRestart

    restart, stop_request = WarmRestart(settings, TrackedObjects()), Path(settings.stop_request)
    return Instrumentation(settings.rank, rows.write, stop_request, restart, rows.add_metrics)


def try_patch(patch: Callable[[], None]) -> None:
    """Apply one patch; training goes on without it if it fails."""
    try:
        patch()
    except Exception:
        log.exception("scavenger: PyTorch %s is not measured completely", torch.__version__)


def device_of(optimizer: Any) -> torch.device:
    """Return where the first parameter of an optimizer of PyTorch or Keras is."""
    is_keras = not isinstance(optimizer, Optimizer)
    groups = (KerasOptimizerState(optimizer) if is_keras else optimizer).param_groups
    trained = [each for group in groups for each in group["params"]]
    return trained[0].device if trained else torch.device("cpu")


def find_model(optimizer: Optimizer | KerasOptimizerState) -> nn.Module | None:
    """Return the smallest module in memory that holds all parameters of an optimizer.

    The search takes as long as a garbage collection, so it is for restarts only. A model of Keras
    holds others of the same parameters; scripts hold the outermost.
    """
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    candidates = []
    for found in gc.get_objects():
        if isinstance(found, nn.Module):
            held = {id(parameter) for parameter in found.parameters()}
            if trained <= held:
                modules = sum(1 for _ in found.modules())
                size = -modules if hasattr(found, "trainable_variables") else modules
                candidates.append((len(held), size, found))
    return min(candidates, key=lambda each: each[:2])[2] if candidates else None
