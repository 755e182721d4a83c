"""Listens to ``DistributedDataParallel``: norms of each bucket before and after it is averaged.

Every rank takes the norm of its own part of the averaged buckets only, all have the same; the
parts add up when the rows of all ranks are joined. Under ``no_sync`` DDP hands over what all
passes accumulated, so its shards are the ranks, each with the samples of all its passes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.autograd import Variable
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from worker_agent.hooks.patch import Function, patch
from worker_agent.hooks.watch import Watch, harmless, norm_of

log = logging.getLogger(__name__)

Averaging = Callable[[Any, GradBucket], Future[Tensor]]


class Averages:
    """Listens to the averages of one DDP module.

    Args:
        watch: Told what is seen.
        group: Ranks that average.
    """

    def __init__(self, watch: Watch, group: dist.ProcessGroup) -> None:
        self.watch = watch
        self.workers, self.rank = group.size(), group.rank()
        self.futures: list[Future[Tensor]] = []
        self.see = harmless(watch)(self._see)
        self.follow = harmless(watch)(self._follow)
        self.end = harmless(watch)(self._end)

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


class DataParallel:
    """Hooks into the DDP modules of this process.

    Args:
        watch: Told what is seen.
        on_forward: Called at the start of every training forward pass of the outermost module,
            between two iterations: gradients are applied, nothing of the next has begun.
    """

    def __init__(self, watch: Watch, on_forward: Callable[[DistributedDataParallel], None]) -> None:
        self.watch, self.on_forward = watch, on_forward
        self.register: Function = DistributedDataParallel.register_comm_hook
        self.averages: WeakKeyDictionary[DistributedDataParallel, Averages] = WeakKeyDictionary()

    def patch(self) -> None:
        """Listen to every DDP module that is made from now on."""
        patch(DistributedDataParallel, "__init__", self._around_init)
        patch(DistributedDataParallel, "register_comm_hook", self._around_register)
        patch(DistributedDataParallel, "_register_builtin_comm_hook", self._around_builtin)

    def _around_init(self, make: Function) -> Function:
        def init(module: DistributedDataParallel, *arguments: Any, **options: Any) -> None:
            make(module, *arguments, **options)
            harmless(self.watch)(self.listen)(module)

        return init

    def _around_register(self, register: Function) -> Function:
        def register_comm_hook(module: Any, state: object, hook: Any) -> None:
            averages = self.averages.get(module)
            if averages is not None:
                module._check_comm_hook(hook)  # ours around it looks well whatever it is
                hook = averages.around(hook)
            register(module, state, hook)

        return register_comm_hook

    def _around_builtin(self, register: Function) -> Function:
        def register_builtin(module: Any, *arguments: Any, **options: Any) -> None:
            self.averages.pop(module, None)
            log.warning("scavenger: unmeasured: a built-in communication hook of DDP")
            register(module, *arguments, **options)

        return register_builtin

    def listen(self, module: DistributedDataParallel) -> None:
        """Listen to one module."""
        group = module.process_group
        if group.size() != dist.get_world_size():
            sizes = group.size(), dist.get_world_size()
            log.warning("scavenger: unmeasured: DDP over %d of %d ranks", *sizes)
            return
        self.averages[module] = Averages(self.watch, group)
        module.register_forward_pre_hook(self._forward_starts, with_kwargs=True)

    def _forward_starts(self, module: Any, arguments: Any, options: Any) -> None:
        if module.training and torch.is_grad_enabled():
            harmless(self.watch)(self._begin)(module, arguments, options)

    def _begin(self, module: Any, arguments: Any, options: Any) -> None:
        averages = self.averages.get(module)
        if averages is None:
            return
        if averages.workers > 1 and not module._comm_hooks:
            averaging = averages.around(all_reduce(module.process_group))
            self.register(module, None, averaging)
        if self.watch.now.forward_at is None:
            self.on_forward(module)
        self.watch.forward_starts(samples_in(arguments, options))


def samples_in(arguments: tuple[Any, ...], options: dict[str, Any]) -> int:
    """Return the length of the first tensor given to a forward pass, 0 if there is none."""
    for value in (*arguments, *options.values()):
        if isinstance(value, Tensor) and value.dim():
            return int(value.shape[0])
        if isinstance(value, dict | list | tuple):
            inner = value if isinstance(value, dict) else dict(enumerate(value))
            if (found := samples_in((), {str(key): each for key, each in inner.items()})) > 0:
                return found
    return 0
