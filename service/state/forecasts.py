"""Forecasts of one job: what it will have cost, and when it reaches its target.

Both follow from the curve of the whole job, scaled to what is left of it. Pages, metrics and the
command line show these figures and compute none of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from functools import lru_cache

from scavenger.cluster import ClusterConfig
from scavenger.planning.curve import TradeoffPoint
from scavenger.planning.decision import preview_curve
from scavenger.schemas.jobs import EtaView
from service.state.curves import CurveKey, curve_key
from service.state.job_state import JobState

MAX_ETA = timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class JobForecast:
    """What is forecast of a job that goes on; None where nothing tells.

    Attributes:
        cost: Dollars that the whole job will have cost.
        eta: When it reaches its target.
    """

    cost: Decimal | None = None
    eta: EtaView | None = None


UNKNOWN_FORECAST = JobForecast()


def forecast_job(
    state: JobState, expected: float | None, target: ClusterConfig | None
) -> JobForecast:
    """Return what a job will cost and when it ends, if it stays on a configuration.

    Args:
        state: The job.
        expected: Reference epochs to its target.
        target: The configuration.
    """
    if expected is None or state.job.phase.is_final:
        return UNKNOWN_FORECAST
    if not state.job.spec.strategy.is_searched:
        # No curve tells what it takes: it may go on as it did so far.
        done = state.epochs
        factor = Decimal(max(expected / done, 1.0)) if done > 0 else None
        return UNKNOWN_FORECAST if factor is None else JobForecast(state.accrued * factor)
    if target is None:
        return UNKNOWN_FORECAST
    basis, point = curve_point(curve_key(state.job.spec, state.knowledge), target)
    if point is None or basis != "total":
        return UNKNOWN_FORECAST
    left = max(1 - state.epochs / expected, 0.0)
    low, high = point.time_range
    p10, p50, p90 = (state.now + to_span(left * seconds) for seconds in (low, point.time, high))
    cost = state.accrued + Decimal(point.cost * left)
    return JobForecast(cost, EtaView(p10=p10, p50=p50, p90=p90))


@lru_cache(maxsize=1024)  # every page of jobs asks, and drawing a curve takes a while
def curve_point(key: CurveKey, config: ClusterConfig) -> tuple[str, TradeoffPoint | None]:
    """Return the point of a configuration, None if there is none, and the basis of its curve."""
    preview = preview_curve(key.knowledge)
    if preview is None:
        return "", None
    points = preview.curve.points
    return preview.curve.basis, next((point for point in points if point.config == config), None)


def to_span(seconds: float) -> timedelta:
    """Return seconds as a span, of ten years at most.

    >>> str(to_span(90.0)), to_span(1e300) == MAX_ETA
    ('0:01:30', True)
    """
    return timedelta(seconds=min(seconds, MAX_ETA.total_seconds()))
