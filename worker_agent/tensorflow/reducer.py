"""`HostReducer`: averages gradients that are in host memory, and measures them.

TensorFlow calls it from inside a training step, chunk by chunk, while it still computes the
gradients of earlier layers. An iteration that is half done, failed or skipped by a worker applies
nothing on any worker. Nothing here imports TensorFlow.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from worker_agent.errors import AgentError, GenerationBroken, UnsupportedOptimizer
from worker_agent.frameworks import (
    NO_FLAGS,
    SUMMARY_COLUMNS,
    WHOLE_BATCH,
    BatchSlice,
    ControlFlags,
    StepSummary,
    WorkListener,
    ignore_work,
    name_columns,
)
from worker_agent.transport.connection import pack_numbers, unpack_numbers
from worker_agent.transport.mesh import Mesh

Gradient = npt.NDArray[Any]

SECOND_STEP_REMEDY = (
    "the optimizer stepped twice on one batch, and a session averages one step of one optimizer"
    " per batch: add the losses up and apply their gradients once"
)


@dataclass(slots=True)
class HostMeasurement:
    """What became of one iteration.

    Attributes:
        began_at: When the script got its samples, in seconds of ``perf_counter``.
        ready_at: When its last gradient was there; 0 before.
        done_at: When all gradients were averaged; 0 before.
        local_norm_sq: Share-weighted squared norm of this worker's gradients; None if unmeasured.
        mean_norm_sq: Squared norm of the averaged gradient, as far as it has been averaged.
        rows: Every worker's row of SUMMARY_COLUMNS; empty before ``done_at``.
        shards: Parts of the batch whose gradients were measured, over all workers.
        is_skipped: Whether this worker's script skipped its samples.
        is_finite: Whether the averaged gradient is finite, as far as that is asked.
        failure: Why the iteration must be redone; empty if it need not be.
    """

    began_at: float = 0.0
    ready_at: float = 0.0
    done_at: float = 0.0
    local_norm_sq: float | None = None
    mean_norm_sq: float = 0.0
    rows: Sequence[Sequence[float]] = ()
    shards: int = 1
    is_skipped: bool = False
    is_finite: bool = True
    failure: str = ""


def summarise(measured: HostMeasurement) -> StepSummary:
    """Return what all workers agreed on in an iteration that ended well."""
    rows = name_columns(measured.rows)
    shards = 1 if any(row["is_skipped"] for row in rows) else measured.shards
    local = sum(row["local_norm_sq"] for row in rows) if shards > 1 else None
    return StepSummary.of_rows(
        rows,
        shards=shards,
        local_norm_sq=local,
        mean_norm_sq=measured.mean_norm_sq if shards > 1 else None,
    )


class HostReducer:
    """Averages the chunks of a gradient over the members of a generation.

    Args:
        layout: Numbers of each chunk and their type, in the order in which chunks come.
        on_work: Called when the script begins to work on its samples.
    """

    def __init__(
        self, layout: Sequence[tuple[int, np.dtype[Any]]], on_work: WorkListener = ignore_work
    ) -> None:
        self.layout, self.on_work = layout, on_work
        self.learning_rate_factor = 1.0
        self.nan_guard = False
        self.skipped_steps = 0
        self.refusal: AgentError | None = None
        self.measured = HostMeasurement()
        self.kept: dict[int, Gradient] = {}
        self.is_active = self.is_at_work = self.is_stepped = self.is_split = False
        self.next_chunk = 0
        self.regroup(None, 0)

    def regroup(self, mesh: Mesh | None, rank: int) -> None:
        """Average over other members from the next iteration on; None for one worker alone."""
        self.mesh, self.rank = mesh, rank
        self.workers = 1 if mesh is None else mesh.size
        self.part, self.flags = WHOLE_BATCH, NO_FLAGS
        self.previous_sync_time = 0.0
        self.is_active = False

    def begin(self, part: BatchSlice, flags: ControlFlags) -> None:
        """Start a slice of an iteration; the first one starts the iteration."""
        if self.part.is_last:
            self.is_split = not part.is_last
            shards = self.workers * (2 if self.is_split else 1)
            self.measured = HostMeasurement(began_at=time.perf_counter(), shards=shards)
            self.kept.clear()
        elif not self.is_stepped:
            self.measured.is_skipped = True
        self.part, self.flags = part, flags
        self.next_chunk = 0
        self.is_active = True
        self.is_stepped = self.is_at_work = False

    def refuse(self, error: AgentError) -> None:
        """Let no step be applied from now on; ``end`` raises the error."""
        self.refusal = self.refusal or error

    def reduce(self, place: int, gradient: Gradient) -> Gradient:
        """Return the average of a chunk over all workers; called in the order of the layout.

        What is returned for an iteration that applies nothing has no meaning.
        """
        if not self.is_active:
            return gradient
        if place == 0:
            self._begin_step()
        try:
            return self._reduce(place, gradient)
        except (GenerationBroken, MemoryError) as error:
            self.measured.failure = str(error)
        except AgentError as error:
            self.refuse(error)
        return gradient

    @property
    def may_apply(self) -> bool:
        """Whether the step may change weights; ask after the last chunk."""
        if self.refusal is not None:
            return False
        measured = self.measured
        if not self.is_active:
            return True
        is_whole = self.part.is_last and not measured.is_skipped and not measured.failure
        return is_whole and not self._is_skipped_by_any and measured.is_finite

    def end(self) -> HostMeasurement:
        """Close the iteration: with no gradient, if the script made none.

        Raises:
            AgentError: The script steps in a way that cannot be followed.
        """
        if self.refusal is not None:
            raise self.refusal
        if not self.is_stepped:
            self._skip()
        self.is_active = False
        self.skipped_steps += not self.measured.is_finite
        self.previous_sync_time = self.measured.done_at - self.measured.ready_at
        return self.measured

    @property
    def _is_skipped_by_any(self) -> bool:
        return any(row["is_skipped"] for row in name_columns(self.measured.rows))

    def _begin_step(self) -> None:
        """Take notice of the first gradients of a step."""
        if self.is_stepped:
            self.refuse(UnsupportedOptimizer(SECOND_STEP_REMEDY))
        if not self.is_at_work:
            self.is_at_work = True
            try:
                self.on_work(is_called_by_script=False)
            except AgentError as error:
                self.refuse(error)

    def _reduce(self, place: int, gradient: Gradient) -> Gradient:
        measured, part = self.measured, self.part
        is_last_chunk = place == len(self.layout) - 1
        self.next_chunk = place + 1
        self.is_stepped = is_last_chunk
        if self.refusal is not None or measured.failure:
            return gradient
        if self.workers > 1 or self.is_split:
            fraction = part.slice_fraction_of_worker * part.worker_fraction_of_batch
            norm_sq = fraction * float(np.dot(gradient, gradient))
            measured.local_norm_sq = (measured.local_norm_sq or 0.0) + norm_sq
        if self.is_split:
            gradient = gradient * gradient.dtype.type(part.slice_fraction_of_worker)
            if place in self.kept:
                gradient += self.kept.pop(place)
        if not part.is_last:
            self.kept[place] = gradient
            return gradient
        if is_last_chunk:
            measured.ready_at = time.perf_counter()
        if self.mesh is not None:
            gradient = gradient * gradient.dtype.type(part.worker_fraction_of_batch)
            self._average(self.mesh, gradient, is_last=is_last_chunk)
        elif is_last_chunk:
            measured.rows = [self._own_row()]
        has_noise = self.rank == 0 and (self.workers > 1 or self.is_split)
        if has_noise or self.nan_guard:
            measured.mean_norm_sq += float(np.dot(gradient, gradient))
            # All workers have the same average, so all skip the same steps.
            measured.is_finite = not self.nan_guard or math.isfinite(measured.mean_norm_sq)
        if is_last_chunk:
            measured.done_at = time.perf_counter()
        return gradient

    def _average(self, mesh: Mesh, gradient: Gradient, *, is_last: bool) -> None:
        """Sum a chunk over all workers; the last one carries every worker's row."""
        own = self._own_row() if is_last else []
        told = mesh.all_reduce(gradient, pack_numbers(own))
        if is_last:
            told[self.rank] = pack_numbers(own)
            self.measured.rows = [unpack_numbers(told[rank]).tolist() for rank in range(mesh.size)]

    def _own_row(self) -> list[float]:
        measured = self.measured
        row = [
            *map(float, astuple(self.flags)),
            measured.local_norm_sq or 0.0,
            measured.ready_at - measured.began_at,
            self.previous_sync_time,
            float(measured.is_skipped),
        ]
        assert len(row) == len(SUMMARY_COLUMNS)
        return row

    def _skip(self) -> None:
        """Close an iteration whose samples the script has skipped: all workers skip theirs.

        The other workers have sent their gradients, or will, and wait for this worker's.
        """
        measured = self.measured
        measured.is_skipped = True
        measured.ready_at = time.perf_counter()
        try:
            for place in range(self.next_chunk, len(self.layout)):
                size, dtype = self.layout[place]
                if self.mesh is not None:
                    is_last = place == len(self.layout) - 1
                    self._average(self.mesh, np.zeros(size, dtype), is_last=is_last)
        except GenerationBroken as error:
            measured.failure = str(error)
        if self.mesh is None:
            measured.rows = [self._own_row()]
        measured.done_at = time.perf_counter()
