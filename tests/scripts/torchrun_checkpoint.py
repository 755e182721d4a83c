"""torchrun's fault-tolerant recipe: a snapshot every epoch, and on from there after a restart."""

import os
import sys
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Trainer:
    def __init__(self, model, loader, optimizer, snapshot_path):
        self.rank = int(os.environ["RANK"])
        self.model, self.loader, self.optimizer = model, loader, optimizer
        self.epochs_run = 0
        self.snapshot_path = snapshot_path
        if os.path.exists(snapshot_path):
            self.load_snapshot()
        self.model = DDP(self.model)

    def load_snapshot(self):
        snapshot = torch.load(self.snapshot_path)
        self.model.load_state_dict(snapshot["model"])
        self.optimizer.load_state_dict(snapshot["optimizer"])
        self.epochs_run = snapshot["epochs_run"]
        if self.rank == 0:
            print(f"resuming at epoch {self.epochs_run}", flush=True)

    def save_snapshot(self):
        snapshot = {
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "epochs_run": self.epochs_run,
        }
        torch.save(snapshot, self.snapshot_path + ".new")
        os.replace(self.snapshot_path + ".new", self.snapshot_path)

    def run_epoch(self):
        self.loader.sampler.set_epoch(self.epochs_run)
        for source, target in self.loader:
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(source), target)
            loss.backward()
            self.optimizer.step()
            time.sleep(float(os.environ.get("PAUSE", "0")))
        return loss

    def train(self, max_epochs):
        while self.epochs_run < max_epochs:
            loss = self.run_epoch()
            self.epochs_run += 1
            if self.rank == 0:
                self.save_snapshot()
                print(f"epoch {self.epochs_run} loss {loss.item():.4f}", flush=True)
        if self.rank == 0:
            print(f"final loss {loss.item():.17g}")


def main(max_epochs, snapshot_path):
    dist.init_process_group(backend="gloo")
    torch.manual_seed(7)
    digits = load_digits()
    dataset = TensorDataset(
        torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    )
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(dataset, batch_size=32, sampler=DistributedSampler(dataset))
    Trainer(model, loader, optimizer, snapshot_path).train(max_epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
