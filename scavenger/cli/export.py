"""``scavenger export``: the measured series of a job as files of MLflow or TensorBoard.

Both formats are small and stable, and are written here, so that nothing needs to be installed.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated
from uuid import NAMESPACE_URL, uuid5

import typer

from scavenger.cli.errors import NothingToExport
from scavenger.cli.options import JobArgument, find_job
from scavenger.cli.output import get_terminal, plain_text
from scavenger.schemas.jobs import JobPhase, JobView
from scavenger.schemas.telemetry import SeriesView, TelemetryView

FIXED_SERIES = (
    *("loss", "step_time", "compute_time", "sync_time", "noise", "noise_scale"),
    *("samples_per_second", "workers", "global_batch"),
)
POINTS = 2000
ODD_LETTERS = re.compile(r"[^A-Za-z0-9_./ -]")  # in names of MLflow


class ExportFormat(StrEnum):
    """What the files are for."""

    MLFLOW = "mlflow"
    TENSORBOARD = "tensorboard"


FormatOption = Annotated[ExportFormat, typer.Option("--to", help="Program that reads the files.")]
DirectoryArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="Directory to write into.", file_okay=False)
]


@dataclass(frozen=True, slots=True)
class ExportedPoint:
    """One value of a series.

    Attributes:
        step: Seconds since the job was submitted.
    """

    at: datetime
    step: int
    value: float


def export(
    context: typer.Context, job: JobArgument, directory: DirectoryArgument, to: FormatOption
) -> None:
    """Write the measured series of a job for MLflow or TensorBoard."""
    terminal = get_terminal(context)
    with terminal.connect() as client:
        found = find_job(client, job)
        names = dict.fromkeys((*FIXED_SERIES, *target_metric(found)))
        telemetry = client.telemetry(found.id, tuple(names), POINTS)
    series = points_of(found, telemetry)
    if not series:
        raise NothingToExport(found.id)
    match to:
        case ExportFormat.MLFLOW:
            place = write_mlflow(directory, found, series)
            look = f"mlflow ui --backend-store-uri {directory}"
        case ExportFormat.TENSORBOARD:
            place = write_tensorboard(directory, found, series)
            look = f"tensorboard --logdir {directory}"
    terminal.write_line(str(place))
    terminal.print_message(f"{len(series)} series of {found.id}. To look at them:")
    # Not wrapped: this is a line to copy.
    terminal.stderr.print(plain_text(f"  {look}"), soft_wrap=True)


def target_metric(job: JobView) -> Sequence[str]:
    """Return the metric of a job's target; nothing if its target is a number of epochs."""
    metric = job.spec.get("target", {}).get("metric")
    return (metric,) if isinstance(metric, str) else ()


def points_of(job: JobView, telemetry: TelemetryView) -> Mapping[str, Sequence[ExportedPoint]]:
    """Return the points of each series that has any; least and largest apart where they differ."""
    found: dict[str, Sequence[ExportedPoint]] = {}
    for series in telemetry.series:
        if series.low == series.high:
            found[series.name] = list(points_of_values(job, series, series.low))
        else:
            found[f"{series.name}/least"] = list(points_of_values(job, series, series.low))
            found[f"{series.name}/largest"] = list(points_of_values(job, series, series.high))
    return {name: points for name, points in found.items() if points}


def points_of_values(
    job: JobView, series: SeriesView, values: Sequence[float | None]
) -> Iterator[ExportedPoint]:
    """Yield the points of some values; what was not measured is left out."""
    for at, value in zip(series.at, values, strict=True):
        if value is not None:
            yield ExportedPoint(at, int((at - job.created_at).total_seconds()), value)


def facts_of(job: JobView) -> Mapping[str, str]:
    """Return what is known of a job beside its series."""
    chosen = job.applied or job.target
    facts = {
        "model_key": job.model_key,
        "phase": job.phase.value,
        "workers": None if chosen is None else chosen.workers,
        "global_batch": None if chosen is None else chosen.global_batch,
        "cost_accrued": f"{job.cost.accrued.amount} {job.cost.accrued.currency}",
        "epochs": job.progress.epochs,
        "iterations": job.progress.iteration,
    }
    return {name: str(fact) for name, fact in facts.items() if fact is not None}


# Files of MLflow: a directory for each run, and in it a file for each metric, parameter and tag.

MLFLOW_STATUS = {
    JobPhase.SUCCEEDED: 3,
    JobPhase.FAILED: 4,
    JobPhase.CAPPED: 4,
    JobPhase.CANCELLED: 5,
}
MLFLOW_RUNNING = 1


def write_mlflow(
    directory: Path, job: JobView, series: Mapping[str, Sequence[ExportedPoint]]
) -> Path:
    """Write a run into MLflow's file store; an export of the same job before is replaced."""
    experiment = directory / "0"
    # The same every time, so that a job is one run.
    run = uuid5(NAMESPACE_URL, job.id).hex
    place = experiment / run
    begun = milliseconds(job.created_at)
    ended = None if job.finished_at is None else milliseconds(job.finished_at)
    if not (experiment / "meta.yaml").exists():
        about = {
            "artifact_location": experiment.absolute().as_uri(),
            "creation_time": begun,
            "experiment_id": "0",
            "last_update_time": begun,
            "lifecycle_stage": "active",
            "name": "Default",
        }
        write_file(experiment / "meta.yaml", json.dumps(about))
    meta: dict[str, object] = {
        "artifact_uri": (place / "artifacts").absolute().as_uri(),
        "end_time": ended,
        "entry_point_name": "",
        "experiment_id": "0",
        "lifecycle_stage": "active",
        "run_id": run,
        "run_name": job.name,
        "run_uuid": run,
        "source_name": "scavenger export",
        "source_type": 4,
        "source_version": "",
        "start_time": begun,
        "status": MLFLOW_STATUS.get(job.phase, MLFLOW_RUNNING),
        "tags": [],
        "user_id": "",
    }
    write_file(place / "meta.yaml", json.dumps(meta))
    for name, points in series.items():
        rows = (f"{milliseconds(each.at)} {each.value!r} {each.step}\n" for each in points)
        write_file(place / "metrics" / ODD_LETTERS.sub("_", name), "".join(rows))
    for name, fact in facts_of(job).items():
        write_file(place / "params" / name, fact)
    write_file(place / "tags" / "mlflow.runName", job.name)
    write_file(place / "tags" / "scavenger.job", job.id)
    (place / "artifacts").mkdir(exist_ok=True)
    return place


def milliseconds(moment: datetime) -> int:
    """Return milliseconds since 1970."""
    return int(moment.timestamp() * 1000)


def write_file(path: Path, content: str) -> None:
    """Write a file, and the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")


# Files of TensorBoard: records with a checksum, each one message of protocol buffers.


def write_tensorboard(
    directory: Path, job: JobView, series: Mapping[str, Sequence[ExportedPoint]]
) -> Path:
    """Write an event file in a directory for the run; one of the same job before is replaced."""
    begun = job.created_at.timestamp()
    place = directory / f"{job.name}-{job.id}" / f"events.out.tfevents.{int(begun)}.scavenger"
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("wb") as file:
        file.write(record(double(1, begun) + text(3, "brain.Event:2")))
        for name, points in series.items():
            for each in points:
                value = text(1, name) + single(2, each.value)
                summary = block(5, block(1, value))
                file.write(record(double(1, each.at.timestamp()) + count(2, each.step) + summary))
    return place


def record(content: bytes) -> bytes:
    """Return a record: its length, its content, and a checksum of each."""
    length = struct.pack("<Q", len(content))
    return length + masked_checksum(length) + content + masked_checksum(content)


def masked_checksum(content: bytes) -> bytes:
    """Return the CRC-32C of a text, rotated and shifted as the format demands."""
    checksum = crc32c(content)
    rotated = ((checksum >> 15) | (checksum << 17)) & 0xFFFFFFFF
    return struct.pack("<I", (rotated + 0xA282EAD8) & 0xFFFFFFFF)


def crc32c(content: bytes) -> int:
    """Return the Castagnoli checksum.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    table, checksum = checksum_table(), 0xFFFFFFFF
    for byte in content:
        checksum = table[(checksum ^ byte) & 0xFF] ^ (checksum >> 8)
    return checksum ^ 0xFFFFFFFF


@cache
def checksum_table() -> Sequence[int]:
    """Return the checksum of each byte."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


def varint(number: int) -> bytes:
    """Return a number with seven bits in each byte.

    >>> varint(300).hex()
    'ac02'
    """
    content = bytearray()
    while number > 0x7F:
        content.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*content, number])


def count(field: int, number: int) -> bytes:
    """Return a field that holds a whole number; none below 0."""
    return varint(field << 3) + varint(max(number, 0))


def double(field: int, value: float) -> bytes:
    """Return a field of eight bytes."""
    return varint(field << 3 | 1) + struct.pack("<d", value)


def block(field: int, content: bytes) -> bytes:
    """Return a field that holds bytes or another message."""
    return varint(field << 3 | 2) + varint(len(content)) + content


def text(field: int, content: str) -> bytes:
    """Return a field that holds a text."""
    return block(field, content.encode())


def single(field: int, value: float) -> bytes:
    """Return a field of four bytes; what does not fit is infinite."""
    try:
        return varint(field << 3 | 5) + struct.pack("<f", value)
    except OverflowError:
        return single(field, float("inf") if value > 0 else float("-inf"))
