"""Rows: what one rank saw of an iteration, and what all ranks together measured of it.

A rank's parts travel through the job's store; the rows of all ranks are lines of a file, which the
launcher of the first rank, or a person, reads.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass

LAYOUT = struct.Struct("<qq5d")


@dataclass(frozen=True, slots=True)
class Part:
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
class Measured:
    """What all ranks together measured of one iteration, in the words of ``StepColumns``.

    Attributes:
        iteration: Optimizer steps of the process so far, this one included.
        samples: Samples of all ranks.
        shards: Ranks the norms were taken over; 1 when they say nothing about noise.
        local_norm_sq: Mean over ranks of ||g_k||²; None if unknown or not finite.
        mean_norm_sq: ||ḡ||²; None if unknown or not finite.
        compute_time: Of the slowest rank.
        sync_time: Of the rank that waited least.
        step_time: Of the first rank.
        mean_compute_time: Mean over ranks.
        fastest_compute_time: Of the fastest rank.
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


def join(parts: Sequence[Part]) -> Measured:
    """Join the parts of one iteration, the first rank's first."""
    compute_times = [part.compute_time for part in parts]
    local = sum(part.local_norm_sq for part in parts) / len(parts)
    mean = sum(part.share_of_mean_norm_sq for part in parts)
    return Measured(
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


def pack(parts: Iterable[Part]) -> bytes:
    """Write parts for the other ranks."""
    return b"".join(LAYOUT.pack(*astuple(part)) for part in parts)


def unpack(content: bytes) -> list[Part]:
    """Read what another rank packed."""
    return [Part(*values) for values in LAYOUT.iter_unpack(content)]


def to_line(row: Measured) -> str:
    """Write a row as one line of JSON."""
    return json.dumps(asdict(row)) + "\n"


def from_line(line: str) -> Measured:
    """Read one line; raises ValueError or TypeError if it is none."""
    return Measured(**json.loads(line))
