"""The interface that a training script uses, and its implementation for a script outside a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Protocol

from worker_agent.frameworks import Framework, find_framework
from worker_agent.sampler import SampleOrder, SampleRange


class Loggable(Protocol):
    """A number, or a tensor with one element."""

    def __float__(self) -> float: ...


def never_stop() -> bool:
    """Return False: train for all epochs."""
    return False


class Session(Protocol):
    """The interface of a training script to its job."""

    @property
    def iteration(self) -> int:
        """Iterations applied so far, over the whole job."""

    @property
    def samples(self) -> int:
        """Samples consumed so far, over the whole job."""

    @property
    def is_leader(self) -> bool:
        """Whether this process should evaluate, print and save."""

    def prepare(
        self,
        model: Any,
        optimizer: Any,
        *,
        micro_batches: int = 1,
        scheduler: Any = None,
        scaler: Any = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Take part in backward passes and optimizer steps of this model.

        Args:
            model: The model; keep using it directly, without DDP.
            optimizer: Its optimizer.
            micro_batches: Backward passes the script makes per batch, the loss of each divided
                by this number.
            scheduler: Its learning-rate scheduler, if any: newcomers continue its schedule.
            scaler: Its ``torch.amp.GradScaler``, if any.
            extra: Other objects that the next iteration depends on, by name; each has
                ``state_dict`` and ``load_state_dict``.
        """

    def batches(
        self,
        dataset_size: int,
        global_batch: int,
        *,
        epochs: float,
        seed: int = 0,
        until: Callable[[], bool] = never_stop,
    ) -> Iterator[Any]:
        """Yield the dataset indices of this worker's part of each batch.

        Args:
            dataset_size: Samples in the data set.
            global_batch: Batch outside a job; a job chooses its own.
            epochs: Epochs outside a job; a job has its own target.
            seed: Seed of the data order, the same on every worker.
            until: Called before each iteration outside a job; True ends training. A job stops at
                its own target.
        """

    def log(self, **metrics: Loggable) -> None:
        """Record named values of this iteration: floats, or tensors that are read later."""

    def __enter__(self) -> Session:
        """Open the session."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the session; an exception of the script passes through untouched."""


class StandaloneSession:
    """The session of a script outside a job: plain batches, nothing measured, nothing sent."""

    def __init__(self, *, deterministic: bool = False) -> None:
        self.is_deterministic = deterministic
        self.framework: Framework | None = None
        self.iteration = 0
        self.samples = 0
        self.is_leader = True

    def prepare(
        self,
        model: Any,
        optimizer: Any,
        *,
        micro_batches: int = 1,
        scheduler: Any = None,
        scaler: Any = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.framework = find_framework(model)

    def batches(
        self,
        dataset_size: int,
        global_batch: int,
        *,
        epochs: float,
        seed: int = 0,
        until: Callable[[], bool] = never_stop,
    ) -> Iterator[Any]:
        framework = self.framework
        order = SampleOrder(dataset_size, seed)
        while self.samples < epochs * dataset_size and not until():
            if framework is not None and self.is_deterministic:
                framework.seed(seed, self.samples)
            indices = order.indices(SampleRange(self.samples, global_batch))
            # Without prepare() the framework is unknown, and NumPy arrays index every one of them.
            yield indices if framework is None else framework.to_batch(indices)
            self.samples += global_batch
            self.iteration += 1

    def log(self, **metrics: Loggable) -> None:
        pass

    def __enter__(self) -> StandaloneSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass
