"""Gradients: listens to a DDP module that copies its gradients into buckets and back.

Between the two copies a gradient still is what this rank computed. So when backward is done with
the last of them, and DDP waits for the others, all norms are taken at once; DDP itself, and what it
has been told to do with its buckets, stays as it is.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from worker_agent.hooks.watch import Watch, harmless, norms_of


class Gradients:
    """Listens to the gradients of one DDP module.

    Args:
        watch: Told what is seen.
    """

    def __init__(self, watch: Watch, module: DistributedDataParallel) -> None:
        self.watch = watch
        self.parameters = [each for each in module._module_parameters if each.requires_grad]
        self.own = own_part(self.parameters, module.process_group)
        self.is_averaging = self.is_in_backward = False
        # In its first backward pass a static graph is averaged before ours is called.
        self.is_blind = module.static_graph
        self.begin = harmless(watch)(self._begin)
        self.ready = harmless(watch)(self._ready)
        self.end = harmless(watch)(self._end)
        # Any parameter will do that surely gets a gradient: its hook comes before DDP's.
        certain = self.parameters if module.find_unused_parameters else self.parameters[:1]
        for parameter in certain:
            parameter.register_post_accumulate_grad_hook(self.begin)

    def forward_starts(self, module: DistributedDataParallel) -> None:
        """A forward pass of the module begins; it settles whether backward averages."""
        self.is_averaging = module.require_backward_grad_sync
        self.is_in_backward = False

    def _begin(self, _: Tensor) -> None:
        if self.is_averaging and not self.is_in_backward:
            self.is_in_backward = True
            self.watch.backward_starts()
            # DDP queues the wait for its buckets after this.
            Variable._execution_engine.queue_callback(self.ready)

    def _ready(self) -> None:
        """All local gradients are there, none is averaged."""
        self.watch.gradients_are_ready()
        if not self.is_blind:
            self.watch.now.local_norms += norms_of(self.parameters)
        Variable._execution_engine.queue_callback(self.end)

    def _end(self) -> None:
        """All gradients are averaged; backward is about to return."""
        self.is_in_backward = False
        self.watch.gradients_are_averaged()
        if not self.is_blind:
            self.watch.now.mean_norms += norms_of(self.own)
        self.is_blind = False


def own_part(parameters: list[Tensor], group: dist.ProcessGroup) -> list[Tensor]:
    """Return the parameters whose middle lies in this rank's part of all elements."""
    total = sum(each.numel() for each in parameters)
    own, position = [], 0
    for each in parameters:
        middle = position + each.numel() / 2
        position += each.numel()
        if int(middle * group.size() / total) == group.rank():
            own.append(each)
    return own
