"""Schemas of what users read beside jobs: machines, telemetry, logs, models in detail, versions."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import ConfigDict, Field

from scavenger.schemas import (
    CalibrationView,
    ConfigView,
    JobPhase,
    MoneyView,
    PriceMarket,
    StoredModelView,
    View,
)

# Some names on the wire are words of Python or of pydantic.
NAMED_BY_ALIAS = ConfigDict(serialize_by_alias=True)
MachineState = Literal["intended", "launched", "ending", "gone"]


class MachineView(View):
    """One machine of a job.

    Attributes:
        role: ``worker`` or ``server``.
        state: ``intended`` until its cloud confirmed it, ``launched``, ``ending`` once its end was
            ordered, and ``gone``.
        cloud: Name of the entry in the clouds file.
        price_per_hour: The most it costs; a spot machine is reserved at its price on demand.
        prepaid_until: It powers itself off at that moment unless its lease is renewed.
        lease_age: Seconds since its worker was last heard; None before the first time.
        launched_at: When its cloud was first asked for it; None before.
        gone_at: When it was gone; None while it may exist.
        why: What is known of it, in one sentence.
    """

    id: str
    job: str
    project: str
    role: Literal["worker", "server"]
    state: MachineState
    cloud: str
    zone: str
    machine_type: str
    market: PriceMarket
    price_per_hour: MoneyView
    prepaid_until: datetime
    lease_age: float | None
    launched_at: datetime | None
    gone_at: datetime | None
    why: str


class MachineList(View):
    """One page of machines, newest first."""

    machines: list[MachineView]
    next_cursor: str | None = None


class SeriesView(View):
    """One series, as the least and the largest value of each of its buckets.

    A bucket without a value, and one between two parts with nothing measured between them, has
    null: a line ends there and begins anew.

    Attributes:
        at: When each bucket begins.
        low: Least value of each bucket.
        high: Largest value of each bucket.
        nonfinite: Values that were NaN or infinite; no bucket shows them.
    """

    name: str
    unit: str
    at: list[datetime]
    low: list[float | None]
    high: list[float | None]
    nonfinite: int


class TelemetryView(View):
    """Measured series of a job.

    Attributes:
        since: Where they begin, ``from`` in the request; later than that where too much was
            measured for one answer.
        until: Where they end, ``to`` in the request.
    """

    model_config = NAMED_BY_ALIAS

    since: datetime = Field(alias="from")
    until: datetime = Field(alias="to")
    series: list[SeriesView]


class LogLineView(View):
    """One line that a command of a job printed.

    Attributes:
        number: Grows over all machines of the job, with gaps.
        at: When it was printed, by the clock of its machine.
    """

    number: int
    machine: str
    role: Literal["worker", "server"]
    at: datetime
    text: str


class LogList(View):
    """One page of the lines that the commands of a job printed, oldest first.

    Attributes:
        dropped: Lines that are not kept, of all machines that were asked for.
    """

    lines: list[LogLineView]
    dropped: int
    next_cursor: str | None = None


class ForecastView(View):
    """What was forecast of a job when it chose, beside what came of it.

    Attributes:
        job: Its id.
        chosen: The configuration it chose.
        due_from: One job in ten ends before this.
        due_until: Nine of ten end before this.
        is_within: Whether it ended within that span; None where it has not succeeded.
        cost_low: What one job in ten costs less than; None where no cost was forecast.
        cost: What half of them cost less than.
        cost_high: What nine of ten cost less than.
        spent: What it has cost.
    """

    job: str
    name: str
    phase: JobPhase
    chosen: ConfigView | None
    due_from: datetime | None
    due_until: datetime | None
    finished_at: datetime | None
    is_within: bool | None
    cost_low: MoneyView | None
    cost: MoneyView | None
    cost_high: MoneyView | None
    spent: MoneyView


class ModelDetailView(StoredModelView):
    """A stored model with the forecasts that its jobs were chosen by.

    Attributes:
        calibration: None before the first forecast can be judged.
        forecasts: The newest jobs of this signature, newest first.
    """

    project: str
    calibration: CalibrationView | None
    forecasts: list[ForecastView]


class ForgottenModelView(View):
    """A model that was forgotten: the next job of its signature searches anew."""

    project: str
    signature: str
    model_key: str
    forgotten_at: datetime


class VersionView(View):
    """What answers.

    Attributes:
        version: Of the controller.
        api: Of the API, the first part of every path.
        schema_revision: Of the database, ``schema`` on the wire.
    """

    model_config = NAMED_BY_ALIAS

    version: str
    api: str
    schema_revision: str = Field(alias="schema")
