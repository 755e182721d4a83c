"""The batches of a session as a data loader of PyTorch, for trainers that draw them themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from worker_agent.session import Session

# Trainers read a batch ahead from a loader without a length, to see whether there is another; and
# how many batches there are is not known before the job ends.
ENDLESS = 10**9


def do_nothing() -> None:
    """Do nothing at the end of the data."""


class SessionBatches(IterableDataset[Any]):
    """Samples as the job assigns them, one local batch after the other.

    Args:
        job: The session.
        loader: What the trainer would draw from outside a job: its data set, how it makes samples
            a batch, and its seed.
        global_batch: Batch outside a job.
        epochs: Epochs outside a job.
        seed: Seed of the data order, the same on every worker.
        on_end: Called after the last batch.
    """

    def __init__(
        self,
        job: Session,
        loader: DataLoader[Any],
        global_batch: int,
        *,
        epochs: float,
        seed: int = 0,
        on_end: Callable[[], object] = do_nothing,
    ) -> None:
        self.job, self.dataset, self.collate = job, loader.dataset, loader.collate_fn
        self.global_batch, self.epochs, self.seed = global_batch, epochs, seed
        self.on_end = on_end

    def __len__(self) -> int:
        return ENDLESS

    def __iter__(self) -> Iterator[Any]:
        size = len(self.dataset)  # type: ignore[arg-type]
        for indices in self.job.batches(
            size, self.global_batch, epochs=self.epochs, seed=self.seed
        ):
            # Without a model that the session knows, indices are an array of NumPy.
            yield self.collate([self.dataset[int(index)] for index in indices])
        self.on_end()


def session_loader(
    job: Session,
    loader: DataLoader[Any],
    *,
    epochs: float,
    global_batch: int | None = None,
    seed: int = 0,
    on_end: Callable[[], object] = do_nothing,
) -> DataLoader[Any]:
    """Return a loader that draws from the session what another one would draw by itself.

    Args:
        job: The session.
        loader: The loader that the script has: its data set needs a length and items by index.
        epochs: Epochs outside a job; all of them are one pass of the loader.
        global_batch: Batch outside a job; that of the loader if None.
        seed: Seed of the data order, the same on every worker.
        on_end: Called after the last batch.

    Raises:
        ValueError: The data set has no items by index.
    """
    if isinstance(loader.dataset, IterableDataset):
        raise ValueError(
            "the data set has no items by index, so a job cannot divide it among workers: use one "
            "with __getitem__ and __len__, or keep your loader and start the script with "
            "`scavenger agent run`"
        )
    batch = global_batch or loader.batch_size
    if batch is None:
        raise ValueError("the loader has no batch size: give global_batch")
    batches = SessionBatches(job, loader, batch, epochs=epochs, seed=seed, on_end=on_end)
    return DataLoader(batches, batch_size=None, pin_memory=loader.pin_memory)
