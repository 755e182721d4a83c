"""What the blocks of a model, a step of its optimizer, and the link inside a machine take.

A pass is timed block by block while nothing trains, so the clock may wait for the device. Of all
times of a computation the shortest counts: other programs only add, and unevenly.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.distributed import ProcessGroup
from torch.optim.optimizer import Optimizer
from torch.utils._pytree import tree_leaves

from scavenger.measurement.layout_profile import LinkSpeed
from worker_agent.pytorch.process_group import connect_group
from worker_agent.pytorch.stacks.model_call import ModelCall, buffers_kept, devices_of, outputs_of

ITERATIONS = 20
WARM_UP_RUNS = 3
MAX_SECONDS = 60.0  # after which timing ends early: a machine has 15 minutes to say hello
Pass = Literal["forward", "backward"]
LOOPBACK = "127.0.0.1"
SMALL_BYTES, LARGE_BYTES = 64 << 10, 8 << 20
SMALL_ROUNDS, LARGE_ROUNDS = 40, 12


def time_blocks(model: nn.Module, chain: dict[str, nn.Module], call: ModelCall) -> BlockClock:
    """Time what is before the first block, each block, and what is after the last one."""
    clock, ends_at = BlockClock(len(chain) + 2), time.monotonic() + MAX_SECONDS
    with clock.watching(list(chain.values())), buffers_kept(model):
        for turn in range(WARM_UP_RUNS + ITERATIONS):
            with torch.random.fork_rng(devices_of(model)):
                is_late = time.monotonic() > ends_at
                counted = turn >= WARM_UP_RUNS or is_late
                clock.run(model, call, is_first=turn == 0, is_counted=counted)
            if is_late:
                break
    return clock


class BlockClock:
    """Counts time and bytes of each block of a chain, in both passes.

    Place 0 is what is before the first block, the last place what is after the last block.

    Attributes:
        took: Seconds of each counted pass, by place and pass.
        handed_over: Bytes that each place hands to the next.
        saved: Bytes that each place keeps for the backward pass.
    """

    def __init__(self, places: int) -> None:
        self.took: dict[tuple[int, Pass], list[float]] = defaultdict(list)
        self.handed_over, self.saved = [0] * places, [0] * places
        self.spent: dict[tuple[int, Pass], float] = {}
        self.place, self.since = 0, 0.0
        self.direction: Pass = "forward"
        self.known: set[int] = set()

    def seconds(self, place: int) -> float:
        """Return the seconds of both passes of a place."""
        passes: tuple[Pass, ...] = ("forward", "backward")
        return sum(min(self.took[place, each]) for each in passes if self.took[place, each])

    def run(self, model: nn.Module, call: ModelCall, *, is_first: bool, is_counted: bool) -> None:
        """Compute both passes of a call; bytes are counted in the first run."""
        trained = [each for each in model.parameters() if each.requires_grad]
        self.known = {each.untyped_storage().data_ptr() for each in model.parameters()}
        hooks = torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor)
        self.spent = defaultdict(float)
        self.direction, self.place, self.since = "forward", 0, now()
        with torch.enable_grad(), hooks if is_first else nullcontext():
            returned = outputs_of(model(*call.arguments, **call.named))
        self._enter(len(self.saved) - 1)
        self.handed_over[-1] = sum(each.nbytes for each in returned)
        pairs = [
            (output, cotangent)
            for output, cotangent in zip(returned, call.cotangents, strict=True)
            if cotangent is not None
        ]
        self.direction = "backward"
        torch.autograd.grad(
            [output for output, _ in pairs],
            trained,
            [cotangent.to(output.dtype) for output, cotangent in pairs],
            allow_unused=True,
        )
        self._enter(0)
        if is_counted:
            for key, seconds in self.spent.items():
                self.took[key].append(seconds)

    @contextmanager
    def watching(self, blocks: Sequence[nn.Module]) -> Iterator[None]:
        """Note the borders of blocks as long as this context is open."""
        handles = []
        for place, block in enumerate(blocks, 1):
            handles += [
                block.register_forward_pre_hook(self._at_border(place - 1, place)),
                block.register_forward_hook(self._at_border(place, place + 1)),
            ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _at_border(self, before: int, after: int) -> Callable[..., None]:
        """Return a hook for where the forward pass leaves one place and enters the next."""

        def cross(_: nn.Module, values: Any, *returned: Any) -> None:
            crossing = tree_leaves(returned or values)
            tensors = [each for each in crossing if isinstance(each, Tensor)]
            self.handed_over[before] = sum(each.nbytes for each in tensors)
            self._enter(after)
            # The backward pass comes back once the gradient by what crosses is known.
            for each in tensors:
                if each.requires_grad:
                    hooked: Any = each
                    hooked.register_hook(lambda _: self._enter(before))

        return cross

    def _enter(self, place: int) -> None:
        """Count the time since the last border for the place that is left."""
        at = now()
        self.spent[self.place, self.direction] += at - self.since
        self.place, self.since = place, at

    def _keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.known:
            self.known.add(storage.data_ptr())
            self.saved[self.place] += storage.nbytes()
        return tensor


def now() -> float:
    """Return the clock, once the device has done all that was queued: nothing trains meanwhile."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def measure_optimizer(optimizer: Optimizer) -> tuple[int, float]:
    """Return how many tensors of the size of the weights an optimizer keeps, and its seconds."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    weights = sum(each.numel() for each in parameters)
    states = [optimizer.state.get(each, {}) for each in parameters]
    kept = [value for state in states for value in state.values() if isinstance(value, Tensor)]
    size = sum(value.numel() for value in kept if value.dim() > 0)
    took: list[float] = []
    for _ in range(ITERATIONS):
        if sum(took) > MAX_SECONDS:
            break
        began = now()
        try:
            optimizer.step()
        except TypeError:  # it wants a closure
            return round(size / weights), 0.0
        took.append(now() - began)
    return round(size / weights), min(took)


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


def time_all_reduce(groups: list[ProcessGroup], size: int, rounds: int) -> list[float]:
    """Return the seconds of each of some all-reduces of so many bytes."""
    tensors = [torch.zeros(size // 4) for _ in groups]
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        works = [group.allreduce([each]) for group, each in zip(groups, tensors, strict=True)]
        for work in works:
            work.wait()
        took.append(time.perf_counter() - began)
    return took


def link_of(small: Sequence[float], large: Sequence[float]) -> LinkSpeed:
    """Return the link whose ring of two takes these seconds for small and large tensors.

    The fastest of each tell the rate. Most messages of a training wait for a processor, so the
    median of the small ones tells the latency.

    >>> link_of([0.2 + SMALL_BYTES / 1e6], [0.2 + LARGE_BYTES / 1e6])
    LinkSpeed(latency_seconds=0.1, bytes_per_second=1000000.0)
    """
    rate = (LARGE_BYTES - SMALL_BYTES) / max(min(large) - min(small), 1e-9)
    return LinkSpeed(max(median(small) - SMALL_BYTES / rate, 0.0) / 2, rate)
