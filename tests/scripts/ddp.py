"""The usual DDP script: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT come from the launcher."""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds per step")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    digits = load_digits()
    dataset = TensorDataset(
        torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    )
    sampler = DistributedSampler(dataset, seed=1)
    batch_size = int(os.environ.get("SCAVENGER_GLOBAL_BATCH", 64)) // world_size
    loader = DataLoader(dataset, batch_size=batch_size, sampler=sampler, drop_last=True)

    model = DDP(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    steps = args.epochs * len(loader)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            time.sleep(args.pause)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} of {world_size}", flush=True)

    if rank == 0:
        print(f"final loss {loss.item():.17g}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
