"""Steps that the script's processes measure, and the file by which the launcher reads them.

Ranks exchange what each saw of a step through the job's store; the first rank combines it and
writes one line of JSON per step. The launcher reads the lines and counts the job's progress over
all starts of the script.
"""

from __future__ import annotations

import fcntl
import json
import logging
import math
import struct
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, TextIO

from worker_agent.state.progress import TrainingProgress

log = logging.getLogger(__name__)

RANK_STEP_LAYOUT = struct.Struct("<qq5d")


@dataclass(frozen=True, slots=True)
class RankStep:
    """What one rank saw of one iteration.

    Attributes:
        iteration: Optimizer steps of this process so far, this one included.
        samples: Samples this rank's forward passes saw.
        local_norm_sq: ||g_k||² of this rank's gradient before it was averaged; NaN if unknown.
        share_of_mean_norm_sq: This rank's part of ||ḡ||²; the parts of all ranks add up to it.
        compute_time: Seconds from the first forward pass to the last local gradient.
        sync_time: Exposed seconds of synchronisation after that.
        step_time: Seconds since the iteration before ended.
    """

    iteration: int
    samples: int
    local_norm_sq: float
    share_of_mean_norm_sq: float
    compute_time: float
    sync_time: float
    step_time: float


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """What all ranks together measured of one iteration, named as in ``StepColumns``.

    Attributes:
        iteration: Optimizer steps of the process so far, this one included.
        samples: Samples of all ranks.
        shards: Ranks the norms were taken over; 1 if they carry no information about noise.
        local_norm_sq: Mean over ranks of ||g_k||²; None if unknown or not finite.
        mean_norm_sq: ||ḡ||²; None if unknown or not finite.
        compute_time: Of the slowest rank.
        sync_time: Of the rank that waited least.
        step_time: Of the first rank.
        mean_compute_time: Mean over ranks.
        fastest_compute_time: Of the fastest rank.
        framework: What trains, by its name in job documents; empty before it is written down.
        metrics: What the framework told of itself since the row before, by name.
        tasks: Task indexes whose gradients were added up, where parameter servers do it.
    """

    iteration: int
    samples: int
    shards: int
    local_norm_sq: float | None
    mean_norm_sq: float | None
    compute_time: float
    sync_time: float
    step_time: float
    mean_compute_time: float
    fastest_compute_time: float
    framework: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    tasks: Sequence[int] = field(default_factory=list)


def combine_ranks(parts: Sequence[RankStep]) -> MeasuredStep:
    """Combine the parts of one iteration, the first rank's first."""
    compute_times = [part.compute_time for part in parts]
    local = sum(part.local_norm_sq for part in parts) / len(parts)
    mean = sum(part.share_of_mean_norm_sq for part in parts)
    return MeasuredStep(
        iteration=parts[0].iteration,
        samples=sum(part.samples for part in parts),
        shards=len(parts),
        local_norm_sq=local if len(parts) > 1 and math.isfinite(local + mean) else None,
        mean_norm_sq=mean if len(parts) > 1 and math.isfinite(local + mean) else None,
        compute_time=max(compute_times),
        sync_time=min(part.sync_time for part in parts),
        step_time=parts[0].step_time,
        mean_compute_time=sum(compute_times) / len(parts),
        fastest_compute_time=min(compute_times),
    )


def pack_rank_steps(parts: Iterable[RankStep]) -> bytes:
    """Encode parts for the first rank."""
    return b"".join(RANK_STEP_LAYOUT.pack(*astuple(part)) for part in parts)


def unpack_rank_steps(content: bytes) -> list[RankStep]:
    """Decode what another rank encoded."""
    return [RankStep(*values) for values in RANK_STEP_LAYOUT.iter_unpack(content)]


def to_line(row: MeasuredStep) -> str:
    """Write a row as one line of JSON."""
    return json.dumps(asdict(row)) + "\n"


def from_line(line: str) -> MeasuredStep:
    """Read one line; raises ValueError or TypeError if it is no row."""
    return MeasuredStep(**json.loads(line))


class StepFileWriter:
    """Appends rows to a file, until that fails; only one process per file writes.

    Args:
        path: The file; created with the first row.
        framework: What trains, by its name in job documents.
    """

    def __init__(self, path: Path, framework: str) -> None:
        self.path, self.framework = path, framework
        self.file: TextIO | None = None
        self.is_mine = True
        # The training thread adds what another thread writes.
        self.metrics: deque[Mapping[str, float]] = deque()

    def add_metrics(self, metrics: Mapping[str, float]) -> None:
        """Write metrics with the next row."""
        self.metrics.append(metrics)

    def write(self, row: MeasuredStep) -> None:
        if not self.is_mine:
            return
        try:
            # Of several processes of torchrun on this machine only one may report; the lock
            # chooses it.
            if self.file is None:
                self.file = self.path.open("a", buffering=1)
                fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            metrics: dict[str, float] = {}
            while self.metrics:
                metrics |= self.metrics.popleft()
            self.file.write(to_line(replace(row, framework=self.framework, metrics=metrics)))
        except BlockingIOError:
            self.is_mine = False
        except OSError as error:
            self.is_mine = False
            log.warning("scavenger: rows cannot be written to %s: %s", self.path, error)


class StepFileReader:
    """Reads rows that are complete; one that is no row is skipped and logged.

    Args:
        path: The file; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: BinaryIO | None = None
        self.incomplete = b""

    def read(self) -> list[MeasuredStep]:
        """Return the rows since the last call."""
        if self.file is None:
            if not self.path.exists():
                return []
            self.file = self.path.open("rb")
        # The last line may be half written; it is completed by the next call.
        *lines, self.incomplete = (self.incomplete + self.file.read()).split(b"\n")
        return [row for line in lines if (row := try_parse_line(line)) is not None]

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


def try_parse_line(line: bytes) -> MeasuredStep | None:
    """Return the row of a line; None if the line is not a row."""
    try:
        return from_line(line.decode())
    except (ValueError, TypeError) as error:
        log.warning("a line is not a measured iteration: %s", error)
        return None


PROGRESS_FIELDS = ("iteration", "samples", "epochs", "provisional")  # all that a launcher can count


def read_job_progress(path: Path) -> TrainingProgress:
    """Read what a launcher, perhaps of another machine, has written; zero if there is nothing."""
    with suppress(OSError, ValueError, TypeError):
        return TrainingProgress(**json.loads(path.read_text()))
    return TrainingProgress()


def write_job_progress(path: Path, progress: TrainingProgress) -> None:
    """Write it for the next start; an error only makes the count start from zero."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps({name: getattr(progress, name) for name in PROGRESS_FIELDS}))
        fresh.replace(path)
