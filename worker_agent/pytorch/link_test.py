"""`measure_link`: how fast two processes of this machine average tensors, in less than a second."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import torch
from torch._C._distributed_c10d import HashStore
from torch.distributed import ProcessGroup

from scavenger.models.layout_time import LinkSpeed
from worker_agent.pytorch.process_group import connect_group

LOOPBACK = "127.0.0.1"
SMALL_BYTES, LARGE_BYTES = 64 << 10, 8 << 20
SMALL_ROUNDS, LARGE_ROUNDS = 40, 12


def measure_link() -> LinkSpeed:
    """Average a small and a large tensor between two members of one group, both in this process.

    Gloo's own threads send and add, over the connections that two processes would have.
    """
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        groups = list(pool.map(lambda rank: connect_group(store, rank, 2, LOOPBACK), range(2)))
    small = time_all_reduce(groups, SMALL_BYTES, SMALL_ROUNDS)
    large = time_all_reduce(groups, LARGE_BYTES, LARGE_ROUNDS)
    return link_of(small, large)


def time_all_reduce(groups: list[ProcessGroup], size: int, rounds: int) -> float:
    """Return the median seconds of an all-reduce of so many bytes."""
    tensors = [torch.zeros(size // 4) for _ in groups]
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        works = [group.allreduce([each]) for group, each in zip(groups, tensors, strict=True)]
        for work in works:
            work.wait()
        took.append(time.perf_counter() - began)
    return median(took)


def link_of(small: float, large: float) -> LinkSpeed:
    """Return the link whose ring of two takes these seconds for a small and a large tensor.

    >>> link_of(0.2 + SMALL_BYTES / 1e6, 0.2 + LARGE_BYTES / 1e6)
    LinkSpeed(latency_seconds=0.1, bytes_per_second=1000000.0)
    """
    rate = (LARGE_BYTES - SMALL_BYTES) / max(large - small, 1e-9)
    return LinkSpeed(max(small - SMALL_BYTES / rate, 0.0) / 2, rate)
