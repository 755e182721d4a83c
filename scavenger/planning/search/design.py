"""Experimental design: the order in which configurations tell most about the laws."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from scavenger.cluster import ClusterConfig, Floats


def space_filling_order(configs: Sequence[ClusterConfig], count: int) -> tuple[ClusterConfig, ...]:
    """Return this many configurations, best first (SCIENCE §3).

    The corners, ordered so that machines are only added; then the two sides of the step from one
    machine to several; then always the one farthest, in log K and log b, from all before it.

    Args:
        configs: What there is to choose from.
        count: How many to return, or all there are if fewer.
    """
    listed = sorted(configs)
    if not listed:
        return ()
    chosen = list(dict.fromkeys([*corner_configs(listed), *machine_boundary(listed)]))[:count]
    places = log_positions(listed)
    while len(chosen) < min(count, len(listed)):
        taken = np.array([listed.index(config) for config in chosen])
        gaps = np.linalg.norm(places[:, None] - places[None, taken], axis=2).min(axis=1)
        gaps[taken] = -1.0
        chosen.append(listed[int(np.argmax(gaps))])
    return tuple(chosen)


def corner_configs(configs: Sequence[ClusterConfig]) -> tuple[ClusterConfig, ...]:
    """Return smallest and largest batch of the fewest workers, then of the most."""
    fewest = min(config.workers for config in configs)
    most = max(config.workers for config in configs)
    few = [config for config in configs if config.workers == fewest]
    many = [config for config in configs if config.workers == most]
    found = (
        config_with_smallest_batch(few),
        config_with_largest_batch(few),
        config_with_largest_batch(many),
        config_with_smallest_batch(many),
    )
    return tuple(dict.fromkeys(found))


def machine_boundary(configs: Sequence[ClusterConfig]) -> tuple[ClusterConfig, ...]:
    """Return the two sides of the step to several machines; none where every worker has its own.

    The most workers of one machine at their smallest batch, the fewest of several at their largest,
    so that the pair tells synchronisation from compute too.
    """
    within = [c for c in configs if c.workers > 1 and c.machines == 1]
    across = [c for c in configs if c.machines > 1]
    if not within or not across:
        return ()
    most = max(config.workers for config in within)
    fewest = min(config.workers for config in across)
    return (
        config_with_smallest_batch([config for config in within if config.workers == most]),
        config_with_largest_batch([config for config in across if config.workers == fewest]),
    )


def config_with_smallest_batch(configs: Sequence[ClusterConfig]) -> ClusterConfig:
    """Return the configuration with the smallest batch."""
    return min(configs, key=lambda config: (config.global_batch, config))


def config_with_largest_batch(configs: Sequence[ClusterConfig]) -> ClusterConfig:
    """Return the configuration with the largest batch."""
    return max(configs, key=lambda config: (config.global_batch, config))


def log_positions(configs: Sequence[ClusterConfig]) -> Floats:
    """Return where configurations lie in log K and log b, each axis scaled to 1."""
    places = np.array([(math.log(c.workers), math.log(c.local_batch)) for c in configs])
    width = np.ptp(places, axis=0)
    width[width == 0] = 1.0
    return np.asarray(places / width)
