"""Schemas of stored models: what earlier jobs taught, and how well it forecast."""

from __future__ import annotations

from datetime import datetime

from scavenger.schemas.base import MoneyView, View
from scavenger.schemas.curves import CalibrationView, LawsView
from scavenger.schemas.jobs import ConfigView, JobPhase


class StoredModelView(View):
    """A fitted model that later jobs of the same signature reuse.

    Attributes:
        epochs_to_target: Reference epochs each target took, by target in words.
    """

    model_key: str
    signature: str
    laws: LawsView
    reference_batch: int
    epochs_to_target: dict[str, float]
    jobs: int
    updated_at: datetime


class StoredModelList(View):
    """One page of stored models, newest first."""

    models: list[StoredModelView]
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
