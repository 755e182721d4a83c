"""DDP with automatic mixed precision, gradient accumulation and clipping."""

import os
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ACCUMULATE = 4

dist.init_process_group(backend="gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(42)

digits = load_digits()
X = torch.tensor(digits.data, dtype=torch.float32) / 16
Y = torch.tensor(digits.target)

net = nn.Sequential(nn.Linear(64, 96), nn.LayerNorm(96), nn.GELU(), nn.Linear(96, 10))
net = DistributedDataParallel(net)
criterion = nn.CrossEntropyLoss()
opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=20)
gen = torch.Generator().manual_seed(rank)

for _ in range(30):
    opt.zero_grad()
    for micro in range(ACCUMULATE):
        index = torch.randint(0, len(X), (16,), generator=gen)
        last = micro == ACCUMULATE - 1
        with nullcontext() if last else net.no_sync():
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = criterion(net(X[index]), Y[index])
            scaler.scale(loss / ACCUMULATE).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()

total = loss.detach().clone()
dist.all_reduce(total)
if rank == 0:
    print(f"final loss {total.item() / world_size:.17g}")
dist.barrier()
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # PyTorch sometimes aborts while the interpreter ends
