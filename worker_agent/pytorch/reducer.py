"""`Reducer`: averages gradients in static buckets while backward runs, and measures them.

The last bucket has a tail with one row per worker: what the workers want to tell each other travels
in the gradients' own all-reduce, aligned with the step and without another collective. On a GPU the
rows travel by the host (`worker_agent.pytorch.device_rows`). Nothing here reads a device value on
the host.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.distributed import ProcessGroup

from worker_agent.frameworks import (
    NO_FLAGS,
    SUMMARY_COLUMNS,
    WHOLE_BATCH,
    BatchSlice,
    ControlFlags,
    WorkListener,
    ignore_work,
)
from worker_agent.pytorch.device_clock import DeviceValues, make_clock
from worker_agent.pytorch.device_rows import DeviceRows, UnreadIteration
from worker_agent.pytorch.gradient_buckets import GradientBucket, fill_buckets
from worker_agent.pytorch.optimizer_hooks import PicklableForwardHook
from worker_agent.pytorch.process_group import await_work
from worker_agent.step_clock import Mark


@dataclass(slots=True)
class IterationMeasurement:
    """What one iteration has measured so far."""

    began_at: Mark | None = None
    forward_at: Mark | None = None
    ready_at: Mark | None = None
    done_at: Mark | None = None
    local_norm_sq: Tensor | None = None
    mean_norm_sq: Tensor | None = None
    summed_norm_sq: float | None = None  # of local_norm_sq, over workers and processes
    shards: int = 0
    is_short: bool = False  # fewer backward passes than announced: its shards are unequal
    is_skipped: bool = False  # the script has neither stepped nor made all of its passes
    is_skipped_by_any: bool | None = None  # by any worker; None until a step reads it
    failure: str | None = None
    works: list[Any] = field(default_factory=list)


class ProcessAgreement(Protocol):
    """What the processes that share a worker's model do together at the end of an iteration."""

    has_scaler: bool

    def sum(self, values: Sequence[Tensor]) -> list[float]:
        """Return the sums over the processes, the same on all of them."""

    def announce_failure(self) -> None:
        """Let the others give up what they wait for."""


class Reducer:
    """Averages gradients over the workers of a generation.

    Args:
        parameters: The trained parameters, in the same order on every worker.
        micro_batches: Backward passes of the script per iteration, each on 1 / micro_batches of
            the samples and with its loss divided by ``micro_batches``.
        should_abort: Called while waiting for other workers; True abandons the iteration.
        on_work: Called when the script begins to work on a slice: at its first forward or backward
            pass, or step.
        has_servers: Whether parameter servers step for the script.
        agreement: What the processes that share this worker's model agree on; None if this one has
            the whole model. With it, the caller of the passes calls ``finish`` after the last.
        uncounted: Parameters whose norms another process of this worker counts.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        *,
        micro_batches: int,
        should_abort: Callable[[], bool],
        on_work: WorkListener = ignore_work,
        has_servers: bool = False,
        agreement: ProcessAgreement | None = None,
        uncounted: Iterable[Tensor] = (),
    ) -> None:
        if micro_batches < 1:
            raise ValueError(f"micro_batches must be at least 1, got {micro_batches}")
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        self.clock = make_clock(find_device(trained))
        self.buckets = fill_buckets(trained, has_tail=not self.clock.is_late)
        others = {id(parameter) for parameter in uncounted}
        for bucket in self.buckets:
            bucket.uncounted = [n for n, p in enumerate(bucket.parameters) if id(p) in others]
        self.micro_batches = micro_batches
        self.should_abort, self.on_work = should_abort, on_work
        self.has_servers, self.agreement = has_servers, agreement
        self.measured = IterationMeasurement()
        self.is_stepped = self.is_at_work = False
        self.opened_by: int | None = None  # the thread that began the last slice
        self.backward: int | None = None  # PyTorch's id of the running backward pass
        self.passes_left = 1
        self.silent_passes = 0  # whose gradients add up before anything is measured
        self.next_bucket = 0
        self.regroup(None, 0, 1)
        for bucket in self.buckets:
            for place, parameter in enumerate(bucket.parameters):
                hook: Any = parameter.register_post_accumulate_grad_hook
                hook(self._hook(bucket, place))

    def regroup(self, group: ProcessGroup | None, rank: int, workers: int) -> None:
        """Average over another group from the next iteration on; None for one worker alone."""
        self.group, self.rank, self.workers = group, rank, workers
        self.is_active = False
        is_late = self.clock.is_late
        self.buckets[-1].allocate(tail=0 if is_late else workers * len(SUMMARY_COLUMNS))
        self.device_rows = DeviceRows(workers, rank) if is_late else None
        self.ended_at: Mark | None = None
        self.previous_sync_time = 0.0
        self.part = WHOLE_BATCH

    def begin(self, part: BatchSlice, flags: ControlFlags = NO_FLAGS) -> None:
        """Start a slice of an iteration; the first one starts the iteration."""
        if self.part.is_last:
            self.measured = IterationMeasurement()
            if self.device_rows is not None:
                began_at, self.ended_at = self.ended_at, None
                self.measured.began_at = self.clock.start() if began_at is None else began_at
            for bucket in self.buckets:
                bucket.used = [False] * len(bucket.parameters)
        elif self.is_incomplete:
            self.measured.is_skipped = True
        self.part, self.flags = part, flags
        self.passes_left = self.micro_batches
        self.is_active = True
        self.is_stepped = self.is_at_work = False
        self.opened_by = threading.get_ident()
        self._rewind()

    @property
    def is_incomplete(self) -> bool:
        """Whether the script has neither stepped in this slice nor made all of its passes."""
        is_over = self.is_stepped or self.passes_left <= 0 or self.measured.done_at is not None
        return self.is_active and not is_over

    @property
    def is_averaged(self) -> bool:
        """Whether the iteration has gone through its last backward pass, or none runs."""
        return not self.is_active or self.measured.done_at is not None

    def is_skipped_by_any(self) -> bool:
        """Whether any worker has skipped its samples, so that none may step; ask after backward."""
        measured = self.measured
        if measured.is_skipped or self.group is None or measured.done_at is None:
            return measured.is_skipped
        if self.device_rows is not None:
            return self.device_rows.is_skipped_by_any
        if measured.is_skipped_by_any is None:
            column = SUMMARY_COLUMNS.index("is_skipped")
            measured.is_skipped_by_any = bool(self._rows[:, column].any())
        return measured.is_skipped_by_any

    def skip(self) -> None:
        """Close an iteration whose samples the script has skipped, so that all workers skip theirs.

        The other workers have sent their gradients, or will, and wait for this worker's.
        """
        self.measured.is_skipped = self.measured.is_short = True
        if self.group is None:
            self.measured.ready_at = self.measured.done_at = self.clock.mark()
            self._write_own_row()
            self._restore_gradients()
            return
        self._clear_gradients()
        for bucket in self.buckets[self.next_bucket :]:
            bucket.accumulated = None
        self.passes_left = 1
        self._rewind(sent=self.next_bucket)  # some were sent by a failed backward pass
        self._backward_ends()
        if self.agreement is not None:
            self.finish()
        self._clear_gradients()

    def on_step(self) -> None:
        """Send the gradients if the script steps after fewer backward passes than announced.

        After none it skips its samples: a step would use the gradients of other workers, or zero.
        """
        self._notify_work(is_called_by_script=True)
        self.is_stepped = True
        if not self.is_active or self.measured.done_at is not None:
            return
        is_part = self.part.slice_fraction_of_worker != 1
        if self._is_empty and (self.group is not None or self.has_servers or is_part):
            self.measured.is_skipped = self.measured.is_short = True
        if self.part.is_last:
            self.measured.is_short |= self.passes_left > 1
            self.passes_left = 1
            self._backward_ends()

    def watch_forward(self, model: nn.Module) -> None:
        """Notice from now on when a forward pass of the model begins."""
        model.register_forward_pre_hook(PicklableForwardHook(self._forward_starts))

    def norm_of_mean(self) -> Tensor:
        """Return ||ḡ||² of the averaged gradient on the device; not finite if ḡ is not."""
        measured = self.measured.mean_norm_sq
        return self._own_mean_norm_sq() if measured is None else measured

    def end(self) -> IterationMeasurement:
        """Close the iteration and return what it measured."""
        self.is_active = False
        measured = self.measured
        if self.device_rows is None:
            self.previous_sync_time = self._seconds(measured.ready_at, measured.done_at)
        elif not self.has_servers:
            self.ended_at = self.clock.mark()
            if measured.failure is None:
                self.device_rows.end(self._unread(self.device_rows, self.ended_at))
        return measured

    @property
    def compute_time(self) -> float:
        """Seconds from the first forward pass to the last local gradient.

        0 without a forward pass, and as long as a device has not got there.
        """
        return self._seconds(self.measured.forward_at, self.measured.ready_at)

    def _seconds(self, since: Mark | None, until: Mark | None) -> float:
        if since is None or until is None:
            return 0.0
        if self.clock.is_late and not (self.clock.is_there(since) and self.clock.is_there(until)):
            return 0.0
        return self.clock.seconds(since, until)

    def _unread(self, rows: DeviceRows, ended_at: Mark) -> UnreadIteration:
        """Return the iteration that ends, with its norms on their way to the host."""
        measured = self.measured
        both = [measured.local_norm_sq, measured.mean_norm_sq]
        norms = [norm for norm in both if norm is not None]
        return UnreadIteration(
            place=rows.ended,
            clock=self.clock,
            began_at=measured.began_at,
            forward_at=measured.forward_at,
            ready_at=ended_at if measured.ready_at is None else measured.ready_at,
            done_at=ended_at if measured.done_at is None else measured.done_at,
            ended_at=ended_at,
            norms=DeviceValues(torch.stack(norms)) if measured.local_norm_sq is not None else None,
            shards=measured.shards,
        )

    def rows_of_workers(self) -> Tensor:
        """Return every worker's row of SUMMARY_COLUMNS on the host, shape (workers, columns)."""
        if self.device_rows is not None:
            return self.device_rows.copy()
        return self._rows.to("cpu", torch.float64, non_blocking=True, copy=True)

    @property
    def _rows(self) -> Tensor:
        """The workers' rows of SUMMARY_COLUMNS, as they travel behind the last gradients."""
        return self.buckets[-1].tail.view(self.workers, len(SUMMARY_COLUMNS))

    def _forward_starts(self, *_: Any) -> None:
        """Record the time of the iteration's first forward pass; an evaluation is none."""
        self._notify_work(is_called_by_script=True)
        if not self.is_active and not torch.compiler.is_compiling():
            self._notice_other_thread()
        if torch.is_grad_enabled() and self.is_active and self.measured.forward_at is None:
            self.measured.forward_at = self.clock.start()

    def _notice_other_thread(self) -> None:
        """Report a model that runs while the thread that draws is between two batches."""
        is_elsewhere = self.opened_by not in (None, threading.get_ident())
        if is_elsewhere and torch.is_grad_enabled():
            self.on_work(is_called_by_script=True)

    def _hook(self, bucket: GradientBucket, place: int) -> Callable[[Tensor], None]:
        def gradient_is_ready(_: Tensor) -> None:
            if not self.is_active:
                return
            running: int = torch._C._current_graph_task_id()
            if self.silent_passes > 0:
                bucket.used[place] = True  # the last pass may leave it out
                if self.backward != running:
                    self.backward = running
                    Variable._execution_engine.queue_callback(self._silent_pass_ends)
                return
            if self.backward != running:
                self._backward_starts(running)
            bucket.take(place)
            if self.group is not None and self._is_last_pass:
                self._advance(self.buckets[:-1])

        return gradient_is_ready

    def _backward_starts(self, running: int) -> None:
        """Expect the gradients of a pass, which may repeat one that failed.

        Buckets that a failed pass has sent cannot be taken back, nor be sent again.
        """
        self._notify_work(is_called_by_script=False)
        if self.next_bucket > 0:
            self.measured.is_skipped = self.measured.is_short = True
        self._rewind(sent=self.next_bucket)
        self.backward = running
        Variable._execution_engine.queue_callback(self._backward_ends)

    def _notify_work(self, *, is_called_by_script: bool) -> None:
        if self.is_active and not self.is_at_work:
            self.is_at_work = True
            self.on_work(is_called_by_script=is_called_by_script)

    @property
    def _is_empty(self) -> bool:
        """Whether the script has made no gradient in this slice, by a backward pass or by hand."""
        if self.backward is not None or self.passes_left < self.micro_batches:
            return False
        return all(p.grad is None for bucket in self.buckets for p in bucket.parameters)

    def _rewind(self, sent: int = 0) -> None:
        """Expect the gradients of all buckets but the first ``sent`` ones."""
        self.backward = None
        self.next_bucket = sent
        for bucket in self.buckets:
            bucket.missing = len(bucket.parameters)

    def _advance(self, buckets: Sequence[GradientBucket]) -> None:
        """Process the next buckets as long as they are complete, in order.

        While a pass runs, the caller leaves out the last bucket: its tail says whether this worker
        skips its samples, and a pass that runs may still fail.
        """
        for bucket in buckets[self.next_bucket :]:
            if bucket.missing > 0:
                return
            self.next_bucket += 1
            self._process(bucket)

    @property
    def _is_last_pass(self) -> bool:
        return self.passes_left == 1 and self.part.is_last

    def _process(self, bucket: GradientBucket) -> None:
        """Measure a complete bucket, then add it to earlier passes or send it."""
        self._measure(bucket)
        if self.part.slice_fraction_of_worker != 1:
            bucket.gradient.mul_(self.part.slice_fraction_of_worker)
        if bucket.accumulated is not None:
            bucket.gradient.add_(bucket.accumulated)
            bucket.accumulated = None
        if not self._is_last_pass:
            bucket.accumulated = bucket.gradient.clone()
            return
        if bucket is self.buckets[-1]:
            self.measured.ready_at = self.clock.mark()
            self._write_own_row()
        self._send(bucket)
        if bucket is self.buckets[-1] and self.device_rows is not None:
            self._reduce(self.device_rows.values)

    def _measure(self, bucket: GradientBucket) -> None:
        """Add this bucket's part of mean_k ||g_k||²; the script has divided its loss already."""
        if self._shards == 1:
            return
        part = self.part
        fraction = part.slice_fraction_of_worker * part.worker_fraction_of_batch
        norm_sq = bucket.norm_sq() * (fraction * self.micro_batches)
        before = self.measured.local_norm_sq
        self.measured.local_norm_sq = norm_sq if before is None else before + norm_sq

    @property
    def _shards(self) -> int:
        is_split = self.part.slice_fraction_of_worker != 1
        return self.workers * self.micro_batches * (2 if is_split else 1)

    def _write_own_row(self) -> None:
        measured = self.measured
        flags = [float(flag) for flag in astuple(self.flags)]
        if self.device_rows is not None:
            self.device_rows.write_own(flags, is_skipped=measured.is_skipped)
            return
        times = [self.compute_time, self.previous_sync_time]
        self._rows.zero_()  # of the other workers, which each add their own
        row = self._rows[self.rank]
        row.copy_(torch.tensor([*flags, 0.0, *times, float(measured.is_skipped)], dtype=row.dtype))
        if measured.local_norm_sq is not None:
            row[len(flags)] = measured.local_norm_sq

    def _send(self, bucket: GradientBucket) -> None:
        if self.group is None or self.measured.failure:
            return
        bucket.gradient.mul_(self.part.worker_fraction_of_batch)
        self._reduce(bucket.flat)

    def _reduce(self, values: Tensor) -> None:
        if self.group is None or self.measured.failure:
            return
        try:
            self.measured.works.append(self.group.allreduce([values]))
        except RuntimeError as error:
            self.measured.failure = str(error)

    def _backward_ends(self) -> None:
        """Finish a backward pass; PyTorch calls it once at the end of each."""
        for bucket in self.buckets[self.next_bucket :]:
            for place, parameter in enumerate(bucket.parameters):
                if parameter.grad is None or parameter.grad is not bucket.views[place]:
                    bucket.take(place)
        for bucket in self.buckets:
            bucket.missing = 0
        self._advance(self.buckets)
        if not self._is_last_pass:
            self._end_pass()
        elif self.agreement is None:
            self.finish()

    def expect_passes(self, parts: int, *, as_shards: bool, passes_per_part: int = 1) -> None:
        """Expect backward passes on so many equal parts in the slice that has begun.

        Args:
            parts: Their number.
            as_shards: Whether each part is a shard of its own, by which noise is measured; it takes
                several more passes over the gradients. Else they add up where they are computed.
            passes_per_part: Passes on each part, which have no parameter in common.
        """
        count = parts * passes_per_part
        self.micro_batches = parts if as_shards else 1
        self.passes_left = count if as_shards else 1
        self.silent_passes = 0 if as_shards else count - 1

    def take_pass(self) -> None:
        """Take the gradients of a backward pass that is over and has called no hook."""
        if self.is_active:
            self._notify_work(is_called_by_script=False)
            self._rewind(sent=self.next_bucket)
            for bucket in self.buckets:
                for place, parameter in enumerate(bucket.parameters):
                    bucket.used[place] |= parameter.grad is not None
            self._backward_ends()

    def _silent_pass_ends(self) -> None:
        self.silent_passes -= 1
        self.backward = None

    def finish(self) -> None:
        """Wait for the averaged gradient of the iteration; in a part of it, do nothing.

        Processes that share a model call it when all of them have made their last pass: one that
        waited within its own would keep the gradients from the stage before.
        """
        if not self.part.is_last:
            return
        self._wait()
        measured = self.measured
        measured.done_at = self.clock.mark()
        measured.shards = 1 if measured.is_short else self._shards
        self._remove_unused()
        if self.agreement is not None:
            self._agree(self.agreement)
        elif self.rank == 0 and measured.shards > 1:
            measured.mean_norm_sq = self._own_mean_norm_sq()
        self._rewind()

    def _own_mean_norm_sq(self) -> Tensor:
        return torch.stack([bucket.norm_sq() for bucket in self.buckets]).sum()

    def _agree(self, agreement: ProcessAgreement) -> None:
        """Add up the norms of all processes of this worker; one that failed fails all."""
        measured = self.measured
        if measured.failure is not None:
            agreement.announce_failure()
        mean = self._own_mean_norm_sq()
        local = self._rows[:, SUMMARY_COLUMNS.index("local_norm_sq")].sum()
        has_failed = torch.tensor(float(measured.failure is not None))
        # A failed sum holds anything.
        summands = [has_failed, *(torch.zeros(2) if has_failed else torch.stack([local, mean]))]
        failed, measured.summed_norm_sq, total = agreement.sum(summands)
        measured.mean_norm_sq = torch.tensor(total, dtype=torch.float64)
        if failed and measured.failure is None:
            measured.failure = "another process of this worker could not average its gradients"
        if agreement.has_scaler and not math.isfinite(total):
            # Its scaler would step where the others' skip.
            self.buckets[0].gradient.fill_(math.nan)

    def _end_pass(self) -> None:
        """Prepare for the next pass; after the last one of a slice the script clips and steps."""
        if self.passes_left > 1:
            self._clear_gradients()
        else:
            for bucket in self.buckets:
                bucket.gradient.zero_()  # a loss scaler fails without gradients
        self.passes_left -= 1
        self._rewind()

    def _remove_unused(self) -> None:
        """Remove the gradients of frozen parameters, and of unused ones if this worker is alone.

        With several workers an unused parameter has a gradient: another worker may have used it.
        """
        for bucket in self.buckets:
            for parameter, is_used in zip(bucket.parameters, bucket.used, strict=True):
                if not parameter.requires_grad or (self.workers == 1 and not is_used):
                    parameter.grad = None

    def _restore_gradients(self) -> None:
        """Restore the gradients as they would be without the agent: the sum of all passes.

        Not when the batch is split: the gradient of the first half is the agent's, not the
        script's.
        """
        for bucket in self.buckets:
            accumulated, bucket.accumulated = bucket.accumulated, None
            if accumulated is None or self.part.slice_fraction_of_worker != 1:
                continue
            bucket.gradient.copy_(accumulated)
            for place, is_used in enumerate(bucket.used):
                if is_used:
                    bucket.parameters[place].grad = bucket.views[place]

    def _clear_gradients(self) -> None:
        for bucket in self.buckets:
            for parameter in bucket.parameters:
                parameter.grad = None

    def _wait(self) -> None:
        """Wait for all buckets in slices of time, so that a dead generation can be abandoned."""
        for work in self.measured.works:
            if self.measured.failure is not None:
                return
            try:
                await_work(work, self.should_abort)
            except RuntimeError as error:
                self.measured.failure = str(error)
        if self.measured.failure is None:
            self.measured.works.clear()


def find_device(parameters: Iterable[Tensor]) -> torch.device:
    """Return the first device of these that is not the host, if there is one."""
    devices = [parameter.device for parameter in parameters]
    host = torch.device("cpu")
    return next((device for device in devices if device.type != host.type), host)
