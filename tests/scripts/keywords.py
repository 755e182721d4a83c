"""Calls what the agent listens to in the ways that are legal and less usual."""

import copy
import io
import pickle

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel


class Wrapped(DistributedDataParallel):
    """As trainers derive their own."""

    def __init__(self, module, **options):
        super().__init__(module=module, **options)


def main():
    dist.init_process_group(backend="gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    ddp = Wrapped(model, gradient_as_bucket_view=True)
    ddp.register_comm_hook(hook=allreduce_hook, state=None)
    optimizer = torch.optim.SGD(params=model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer=optimizer, step_size=2)
    scaler = torch.amp.GradScaler(device="cpu", init_scale=4.0)
    for _ in range(5):
        optimizer.zero_grad()
        loss = ddp(torch.ones(3, 4)).square().mean()
        scaler.scale(outputs=loss).backward()
        scaler.step(optimizer=optimizer)
        scaler.update()
        scheduler.step()

    optimizer.load_state_dict(state_dict=copy.deepcopy(optimizer.state_dict()))
    twin = copy.deepcopy(model)
    torch.save(model, io.BytesIO())
    for each in (optimizer, scheduler, scaler, DistributedDataParallel, dist.destroy_process_group):
        pickle.loads(pickle.dumps(each))
    again = copy.deepcopy(DistributedDataParallel(module=twin))
    again(torch.ones(3, 4)).sum().backward()
    dist.destroy_process_group(group=None)
    print(f"final loss {loss.item():.17g}")


if __name__ == "__main__":
    main()
