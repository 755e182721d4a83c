"""Session: what a training script talks to, and its form for a script that runs alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Protocol

from worker_agent.sampler import SampleOrder, Share


class Loggable(Protocol):
    """A number, or a tensor with one element."""

    def __float__(self) -> float: ...


class Session(contextlib.AbstractContextManager["Session"]):
    """What a training script may ask for; the script runs alone in this class's own form.

    Attributes:
        iteration: Iterations applied so far.
        samples: Samples consumed so far.
        is_leader: Whether this process should evaluate, print and save.
    """

    iteration: int = 0
    samples: int = 0
    is_leader: bool = True

    def prepare(self, model: Any, optimizer: Any, *, micro_batches: int = 1) -> None:
        """Take part in backward passes and optimizer steps of this model.

        Args:
            model: A ``torch.nn.Module``; keep using it directly, without DDP.
            optimizer: Its ``torch.optim.Optimizer``.
            micro_batches: Backward passes the script makes per batch, the loss of each divided
                by this number.
        """
        raise NotImplementedError

    def batches(
        self,
        dataset_size: int,
        global_batch: int,
        *,
        epochs: float,
        seed: int = 0,
        until: Callable[[], bool] = lambda: False,
    ) -> Iterator[Any]:
        """Yield the dataset indices of this worker's part of each batch.

        Args:
            dataset_size: Samples in the data set.
            global_batch: Batch to use when running alone; a job decides its own.
            epochs: Epochs to run for when running alone; a job decides its own.
            seed: Seed of the data order, the same on every worker.
            until: Asked after each iteration when running alone; True ends training. A job
                stops at its own target.
        """
        raise NotImplementedError

    def log(self, **metrics: Loggable) -> None:
        """Note named values of this iteration: floats, or tensors that are read later."""
        raise NotImplementedError

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the session; an exception of the script passes through untouched."""


class Solo(Session):
    """The session of a script that runs alone: plain batches, nothing measured, nothing sent."""

    def prepare(self, model: Any, optimizer: Any, *, micro_batches: int = 1) -> None:
        """Do nothing."""

    def batches(
        self,
        dataset_size: int,
        global_batch: int,
        *,
        epochs: float,
        seed: int = 0,
        until: Callable[[], bool] = lambda: False,
    ) -> Iterator[Any]:
        """Yield whole batches until the epochs are used up or ``until`` says so."""
        import torch

        order = SampleOrder(dataset_size, seed)
        while self.samples < epochs * dataset_size and not until():
            yield torch.from_numpy(order.indices(Share(self.samples, global_batch)))
            self.samples += global_batch
            self.iteration += 1

    def log(self, **metrics: Loggable) -> None:
        """Do nothing."""
