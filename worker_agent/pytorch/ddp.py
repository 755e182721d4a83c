"""Instruments ``DistributedDataParallel``: norms of the gradient before and after it is averaged.

Every rank takes the norm of its own part of the averaged gradient only, since all ranks have the
same; the parts add up when the rows of all ranks are combined. Under ``no_sync`` DDP averages
the accumulated gradients of all passes, so its shards are the ranks, each with the samples of
all its passes.
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

from worker_agent.launcher.patch import AnyFunction, Patch
from worker_agent.launcher.step_timer import StepTimer
from worker_agent.pytorch.device_clock import make_clock
from worker_agent.pytorch.norms import gradient_norm, gradient_norms
from worker_agent.pytorch.optimizer_hooks import PicklableForwardHook

log = logging.getLogger(__name__)


class DdpInstrumentation:
    """Instruments the DDP modules of this process.

    Args:
        timer: Told what happens.
        on_forward: Called at the start of every training forward pass of the outermost module,
            between two iterations: gradients are applied, nothing of the next has begun.
    """

    def __init__(
        self, timer: StepTimer, on_forward: Callable[[DistributedDataParallel], None]
    ) -> None:
        self.timer, self.on_forward = timer, on_forward
        self.register: AnyFunction = DistributedDataParallel.register_comm_hook
        self.listeners: WeakKeyDictionary[
            DistributedDataParallel, BucketViewListener | GradientListener
        ] = WeakKeyDictionary()

    def patches(self) -> tuple[Patch, ...]:
        ddp = DistributedDataParallel
        return (
            Patch(ddp, "__init__", after=self.timer.guarded(self.listen)),
            Patch(ddp, "register_comm_hook", before=self._gets_hook),
            Patch(ddp, "_register_builtin_comm_hook", before=self._gets_builtin_hook),
        )

    def _gets_hook(
        self, module: DistributedDataParallel, state: object, hook: Any
    ) -> tuple[Any, ...] | None:
        """Wrap the script's communication hook in the agent's, if DDP would accept it."""
        listener = self.listeners.get(module)
        if not isinstance(listener, BucketViewListener) or not callable(hook):
            return None
        return module, state, listener.around(hook)

    def _gets_builtin_hook(self, module: DistributedDataParallel, *_: Any) -> None:
        if isinstance(self.listeners.get(module), BucketViewListener):
            del self.listeners[module]
            log.warning("scavenger: unmeasured: a built-in hook of DDP over bucket views")

    def listen(self, module: DistributedDataParallel, *_: Any) -> None:
        """Measure a module from now on, unless it averages over a part of the ranks."""
        group = module.process_group
        if group.size() != dist.get_world_size():
            sizes = group.size(), dist.get_world_size()
            log.warning("scavenger: unmeasured: DDP over %d of %d ranks", *sizes)
            return
        self.timer.use_clock(make_clock(next(module.parameters()).device))
        self.listeners[module] = (
            BucketViewListener(self.timer, group, self.register)
            if module.gradient_as_bucket_view
            else GradientListener(self.timer, module)
        )
        module.register_forward_pre_hook(
            PicklableForwardHook(self.timer.guarded(self._forward_starts)), with_kwargs=True
        )

    def _forward_starts(self, module: Any, arguments: Any, options: Any) -> None:
        listener = self.listeners.get(module)
        if listener is None or not (module.training and torch.is_grad_enabled()):
            return
        listener.forward_starts(module)
        if self.timer.current.forward_at is None:
            self.on_forward(module)
        self.timer.forward_starts(count_samples(arguments, options))


def count_samples(arguments: tuple[Any, ...], options: dict[str, Any]) -> int:
    """Return the length of the first tensor given to a forward pass, 0 if there is none."""
    for value in (*arguments, *options.values()):
        if isinstance(value, Tensor) and value.dim():
            return int(value.shape[0])
        if isinstance(value, dict | list | tuple):
            inner = value if isinstance(value, dict) else dict(enumerate(value))
            if (found := count_samples((), {str(key): each for key, each in inner.items()})) > 0:
                return found
    return 0


CommunicationHook = Callable[[Any, GradBucket], Future[Tensor]]


class BucketViewListener:
    """Measures the buckets of one DDP module whose gradients are views of them.

    Such buckets are averaged in place while the rest of backward still runs, so each is measured in
    a communication hook, right before. DDP scales these buckets in place with or without a hook, so
    the hook costs nothing.

    Args:
        timer: Told what happens.
        group: Ranks that average.
        register: What registers a communication hook, unpatched.
    """

    def __init__(self, timer: StepTimer, group: dist.ProcessGroup, register: AnyFunction) -> None:
        self.timer, self.register = timer, register
        self.workers, self.rank = group.size(), group.rank()
        self.futures: list[Future[Tensor]] = []
        self.before_reduce = timer.guarded(self._before_reduce)
        self.after_reduce = timer.guarded(self._after_reduce)
        self.end = timer.guarded(self._end)

    def forward_starts(self, module: DistributedDataParallel) -> None:
        """At the start of a forward pass, register a hook unless the script has its own."""
        if self.workers > 1 and not module._comm_hooks:
            self.register(module, None, self.around(make_all_reduce_hook(module.process_group)))

    def around(self, averaging: CommunicationHook) -> CommunicationHook:
        """Return a communication hook that does the same and measures."""

        @wraps(averaging)
        def measured(state: Any, bucket: GradBucket) -> Future[Tensor]:
            self.before_reduce(bucket)
            future = averaging(state, bucket)
            self.after_reduce(bucket, future)
            return future

        return measured

    def _before_reduce(self, bucket: GradBucket) -> None:
        if not self.futures:
            self.timer.backward_starts()
        self.timer.current.local_norms.append(gradient_norm(bucket.buffer()))

    def _after_reduce(self, bucket: GradBucket, future: Future[Tensor]) -> None:
        self.futures.append(future)
        if bucket.is_last():
            self.timer.gradients_are_ready()
            # DDP queues the end of its own work right after this; the inner callback follows it.
            engine = Variable._execution_engine
            engine.queue_callback(lambda: engine.queue_callback(self.end))

    def _end(self) -> None:
        """Measure the averaged buckets, as backward is about to return."""
        futures, self.futures = self.futures, []
        self.timer.gradients_are_averaged()
        self.timer.current.mean_norms += [
            gradient_norm(self._own_part(each.value())) for each in futures
        ]

    def _own_part(self, averaged: Tensor) -> Tensor:
        flat = averaged.view(-1)
        low = flat.numel() * self.rank // self.workers
        return flat[low : flat.numel() * (self.rank + 1) // self.workers]


def make_all_reduce_hook(group: dist.ProcessGroup) -> CommunicationHook:
    """Return a hook that does what DDP does without one, to the last bit: multiply by 1/K, add."""
    share = 1 / group.size()

    def averaging(state: Any, bucket: GradBucket) -> Future[Tensor]:
        flat = bucket.buffer().mul_(share)
        work: Any = dist.all_reduce(flat, group=group, async_op=True)
        averaged: Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
        return averaged

    averaging.__annotations__.clear()  # DDP compares them with classes; here they are strings
    return averaging


class GradientListener:
    """Measures the gradients of one DDP module that copies them into buckets and back.

    Between the two copies a gradient still is what this rank computed. So when backward is done
    with the last of them, and DDP waits for other ranks, all norms are taken at once. DDP itself,
    and what the script has changed about its buckets, stay as they are.

    Args:
        timer: Told what happens.
    """

    def __init__(self, timer: StepTimer, module: DistributedDataParallel) -> None:
        self.timer = timer
        self.parameters = [each for each in module._module_parameters if each.requires_grad]
        self.own = own_parameters(self.parameters, module.process_group)
        self.is_averaging = self.is_in_backward = False
        # In its first backward pass a static graph is averaged before the agent's hook runs.
        self.skips_first_backward = module.static_graph
        self.begin = timer.guarded(self._begin)
        self.ready = timer.guarded(self._ready)
        self.end = timer.guarded(self._end)
        # Any parameter that certainly gets a gradient will do: its hook runs before DDP's.
        certain = self.parameters if module.find_unused_parameters else self.parameters[:1]
        for parameter in certain:
            parameter.register_post_accumulate_grad_hook(self.begin)

    def forward_starts(self, module: DistributedDataParallel) -> None:
        """At the start of a forward pass, note whether its backward pass averages."""
        self.is_averaging = module.require_backward_grad_sync
        self.is_in_backward = False

    def _begin(self, _: Tensor) -> None:
        if self.is_averaging and not self.is_in_backward:
            self.is_in_backward = True
            self.timer.backward_starts()
            # DDP queues the wait for its buckets after this.
            Variable._execution_engine.queue_callback(self.ready)

    def _ready(self) -> None:
        """Measure the local gradients, of which none is averaged yet."""
        self.timer.gradients_are_ready()
        if not self.skips_first_backward:
            self.timer.current.local_norms += gradient_norms(self.parameters)
        Variable._execution_engine.queue_callback(self.end)

    def _end(self) -> None:
        """Measure the averaged gradients, as backward is about to return."""
        self.is_in_backward = False
        self.timer.gradients_are_averaged()
        if not self.skips_first_backward:
            self.timer.current.mean_norms += gradient_norms(self.own)
        self.skips_first_backward = False


def own_parameters(parameters: list[Tensor], group: dist.ProcessGroup) -> list[Tensor]:
    """Return the parameters whose middle element is in this rank's part of all elements."""
    total = sum(each.numel() for each in parameters)
    own, position = [], 0
    for each in parameters:
        middle = position + each.numel() / 2
        position += each.numel()
        if int(middle * group.size() / total) == group.rank():
            own.append(each)
    return own
