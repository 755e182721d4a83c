"""Buckets: listens to a DDP module whose gradients are views of the buckets that are averaged.

They are averaged in place while the rest of backward still runs, so each bucket is looked at in a
communication hook, right before. Such a module scales its buckets in place with or without a hook:
ours costs it nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.autograd import Variable
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from worker_agent.hooks.patch import Function
from worker_agent.hooks.watch import Watch, harmless, norm_of

Averaging = Callable[[Any, GradBucket], Future[Tensor]]


class Buckets:
    """Listens to the buckets of one DDP module.

    Args:
        watch: Told what is seen.
        group: Ranks that average.
        register: What registers a communication hook, unpatched.
    """

    def __init__(self, watch: Watch, group: dist.ProcessGroup, register: Function) -> None:
        self.watch, self.register = watch, register
        self.workers, self.rank = group.size(), group.rank()
        self.futures: list[Future[Tensor]] = []
        self.see = harmless(watch)(self._see)
        self.follow = harmless(watch)(self._follow)
        self.end = harmless(watch)(self._end)

    def forward_starts(self, module: DistributedDataParallel) -> None:
        """A forward pass of the module begins; a script that has a hook has told DDP of it."""
        if self.workers > 1 and not module._comm_hooks:
            self.register(module, None, self.around(all_reduce(module.process_group)))

    def around(self, averaging: Averaging) -> Averaging:
        """Return a communication hook that does the same and is listened to."""

        @wraps(averaging)
        def measured(state: Any, bucket: GradBucket) -> Future[Tensor]:
            self.see(bucket)
            future = averaging(state, bucket)
            self.follow(bucket, future)
            return future

        return measured

    def _see(self, bucket: GradBucket) -> None:
        if not self.futures:
            self.watch.backward_starts()
        self.watch.now.local_norms.append(norm_of(bucket.buffer()))

    def _follow(self, bucket: GradBucket, future: Future[Tensor]) -> None:
        self.futures.append(future)
        if bucket.is_last():
            self.watch.gradients_are_ready()
            # DDP queues the end of its own work right after this; ours comes behind it.
            engine = Variable._execution_engine
            engine.queue_callback(lambda: engine.queue_callback(self.end))

    def _end(self) -> None:
        """All buckets are averaged; backward is about to return."""
        futures, self.futures = self.futures, []
        self.watch.gradients_are_averaged()
        self.watch.now.mean_norms += [norm_of(self._own_part(each.value())) for each in futures]

    def _own_part(self, averaged: Tensor) -> Tensor:
        flat = averaged.view(-1)
        low = flat.numel() * self.rank // self.workers
        return flat[low : flat.numel() * (self.rank + 1) // self.workers]


def all_reduce(group: dist.ProcessGroup) -> Averaging:
    """Return what DDP does without a hook, to the last bit: multiply by 1/K, then add up."""
    share = 1 / group.size()

    def averaging(state: Any, bucket: GradBucket) -> Future[Tensor]:
        flat = bucket.buffer().mul_(share)
        work: Any = dist.all_reduce(flat, group=group, async_op=True)
        averaged: Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
        return averaged

    averaging.__annotations__.clear()  # DDP compares them with classes; here they are strings
    return averaging
