"""What every configuration of a space would really take: the curve an oracle chooses from."""

from __future__ import annotations

from scavenger.cluster import ClusterConfig, ConfigSpace
from scavenger.grid import grid_of
from scavenger.pricing import PriceModel
from scavenger.simulator.job import KnownJob
from scavenger.tradeoff import TradeoffCurve, TradeoffPoint


def true_curve(job: KnownJob, space: ConfigSpace, price: PriceModel) -> TradeoffCurve:
    """Return true time and cost of every configuration, run from the first iteration (Eqs. 3-5)."""
    return TradeoffCurve(tuple(true_point(job, config, price) for config in space), "total")


def true_point(job: KnownJob, config: ClusterConfig, price: PriceModel) -> TradeoffPoint:
    """Return what one configuration really takes from the first iteration to the target."""
    compute, sync = job.compute_time(config), job.sync_time(config)
    time = job.seconds_to(config, 1.0)
    return TradeoffPoint(
        config=config,
        noise=None,
        epochs=job.epochs_needed(config.global_batch),
        compute_time=compute,
        sync_time=sync,
        step_time=compute + sync,
        measured_step_time=None,
        time=time,
        cost=per_hour(config, price) * time / 3600,
    )


def per_hour(config: ClusterConfig, price: PriceModel) -> float:
    """Dollars per hour of one configuration."""
    return float(price.per_hour(grid_of([config]))[0])
