"""Files for MLflow and TensorBoard: gaps, bounds, odd names, and one run for each job."""

from __future__ import annotations

import struct
from datetime import timedelta
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from scavenger.cli.export import (
    crc32c,
    points_of,
    single,
    target_metric,
    varint,
    write_mlflow,
    write_tensorboard,
)
from scavenger.schemas.telemetry import SeriesView, TelemetryView
from tests.builders import NOW
from tests.unit.test_cli_rendering import job_view

AT = [NOW + timedelta(seconds=10 * n) for n in range(4)]
LOSS: list[float | None] = [2.0, 1.5, None, 1.0]
LEAST: list[float | None] = [0.1, 0.1, None, 0.2]


def telemetry() -> TelemetryView:
    """Return a series without a spread, one with one, and one without a value."""
    series = [
        SeriesView(name="loss", unit="", at=AT, low=LOSS, high=LOSS, nonfinite=0),
        SeriesView(name="step_time", unit="s", at=AT, low=LEAST, high=LOSS, nonfinite=1),
        SeriesView(name="noise", unit="", at=AT, low=[None] * 4, high=[None] * 4, nonfinite=0),
        SeriesView(name="a@b", unit="", at=AT[:1], low=[1.0], high=[1.0], nonfinite=0),
    ]
    return TelemetryView.model_validate({"from": NOW, "to": AT[-1], "series": series})


def test_what_was_not_measured_is_left_out() -> None:
    series = points_of(job_view(created_at=NOW), telemetry())
    assert list(series) == ["loss", "step_time/least", "step_time/largest", "a@b"]
    assert [(each.step, each.value) for each in series["loss"]] == [(0, 2.0), (10, 1.5), (30, 1.0)]


def test_the_metric_of_the_target_is_a_series() -> None:
    assert target_metric(job_view(spec={"target": {"metric": "accuracy"}})) == ("accuracy",)
    assert target_metric(job_view(spec={"target": {"epochs": 3}})) == ()


def test_a_job_is_one_run_however_often_it_is_exported(tmp_path: Path) -> None:
    job = job_view(created_at=NOW)
    series = points_of(job, telemetry())
    for write in (write_mlflow, write_tensorboard):
        place = write(tmp_path, job, series)
        before = sorted(path for path in tmp_path.rglob("*"))
        assert write(tmp_path, job, series) == place
        assert sorted(path for path in tmp_path.rglob("*")) == before
    (metric,) = tmp_path.glob("0/*/metrics/loss")
    moment = int(NOW.timestamp() * 1000)
    assert metric.read_text().splitlines()[1] == f"{moment + 10_000} 1.5 10"
    assert {path.name for path in metric.parent.iterdir()} == {"a_b", "loss", "step_time"}


@given(st.integers(0, 2**63 - 1))
def test_a_varint_holds_its_number(number: int) -> None:
    content = varint(number)
    assert sum((byte & 0x7F) << 7 * place for place, byte in enumerate(content)) == number
    assert [byte >> 7 for byte in content] == [1] * (len(content) - 1) + [0]


@given(st.floats(allow_nan=False))
def test_every_number_fits_a_field_of_four_bytes(value: float) -> None:
    (read,) = struct.unpack("<f", single(2, value)[1:])
    assert (
        read == value
        or abs(read - value) <= abs(value) * 1e-6
        or abs(value) > 3e38
        or abs(value) < 1e-37
    )


def test_the_checksum_is_that_of_castagnoli() -> None:
    assert crc32c(bytes(32)) == 0x8A9136AA
