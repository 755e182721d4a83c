"""Listens to ``DistributedDataParallel``: norms of the gradient before and after it is averaged.

Every rank takes the norm of its own part of the averaged gradient only, all have the same; the
parts add up when the rows of all ranks are joined. Under ``no_sync`` DDP averages what all passes
accumulated, so its shards are the ranks, each with the samples of all its passes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from worker_agent.hooks.buckets import Buckets
from worker_agent.hooks.gradients import Gradients
from worker_agent.hooks.patch import Function, Patch
from worker_agent.hooks.watch import Watch, harmless
from worker_agent.strategies.module_hook import ModuleHook

log = logging.getLogger(__name__)


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
        self.listeners: WeakKeyDictionary[DistributedDataParallel, Buckets | Gradients] = (
            WeakKeyDictionary()
        )

    def patches(self) -> tuple[Patch, ...]:
        """Return what is to be replaced to listen to every DDP module that is made from now on."""
        ddp = DistributedDataParallel
        return (
            Patch(ddp, "__init__", after=self._is_made),
            Patch(ddp, "register_comm_hook", before=self._gets_hook),
            Patch(ddp, "_register_builtin_comm_hook", before=self._gets_builtin_hook),
        )

    def _is_made(self, module: DistributedDataParallel, *_: Any) -> None:
        harmless(self.watch)(self.listen)(module)

    def _gets_hook(
        self, module: DistributedDataParallel, state: object, hook: Any
    ) -> tuple[Any, ...] | None:
        """Put ours around a communication hook, if DDP would take it."""
        listener = self.listeners.get(module)
        if not isinstance(listener, Buckets) or not callable(hook):
            return None
        return module, state, listener.around(hook)

    def _gets_builtin_hook(self, module: DistributedDataParallel, *_: Any) -> None:
        if isinstance(self.listeners.get(module), Buckets):
            del self.listeners[module]
            log.warning("scavenger: unmeasured: a built-in hook of DDP over bucket views")

    def listen(self, module: DistributedDataParallel) -> None:
        """Listen to one module."""
        group = module.process_group
        if group.size() != dist.get_world_size():
            sizes = group.size(), dist.get_world_size()
            log.warning("scavenger: unmeasured: DDP over %d of %d ranks", *sizes)
            return
        self.listeners[module] = (
            Buckets(self.watch, group, self.register)
            if module.gradient_as_bucket_view
            else Gradients(self.watch, module)
        )
        module.register_forward_pre_hook(ModuleHook(self._forward_starts), with_kwargs=True)

    def _forward_starts(self, module: Any, arguments: Any, options: Any) -> None:
        if module.training and torch.is_grad_enabled():
            harmless(self.watch)(self._begin)(module, arguments, options)

    def _begin(self, module: Any, arguments: Any, options: Any) -> None:
        listener = self.listeners.get(module)
        if listener is None:
            return
        listener.forward_starts(module)
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
