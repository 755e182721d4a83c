"""The interface that a training script uses, and its implementation for a script outside a job."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self
from weakref import WeakKeyDictionary

from worker_agent.frameworks import Framework, ModelSteps, find_framework
from worker_agent.sampler import SampleOrder, SampleRange
from worker_agent.state.progress import TrainingProgress


class Loggable(Protocol):
    """A number, or a tensor with one element."""

    def __float__(self) -> float: ...


Loss = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class SharingOptions:
    """What a script says so that several processes can share its model.

    Attributes:
        loss: Mean loss over a batch, from outputs and targets; None if it was not passed.
        blocks: Modules whose composition is the model; None for the model's own.
        tensor_plan: How modules are cut, by patterns of their names; None for well-known names.
    """

    loss: Loss | None = None
    blocks: tuple[Any, ...] | None = None
    tensor_plan: Mapping[str, str] | None = None


_PREPARED: WeakKeyDictionary[Any, SharingOptions] = WeakKeyDictionary()


def sharing_of(model: Any) -> SharingOptions:
    """Return what a script outside a job said of a model when it prepared it."""
    return _PREPARED.get(model, SharingOptions())


def never_stop() -> bool:
    """Return False: train for all epochs."""
    return False


class Session(ABC):
    """The interface of a training script to its job.

    Scripts see the methods of this class only, so each signature stands here once. A subclass says
    how it attaches to the model and where its batches come from.

    Attributes:
        progress: Where training stands, over the whole job.
    """

    framework: Framework | None = None

    def __init__(self, *, deterministic: bool = False) -> None:
        self.is_deterministic = deterministic
        self.progress = TrainingProgress()
        self.sharing = SharingOptions()
        self.model_steps: ModelSteps | None = None

    @property
    def iteration(self) -> int:
        """Iterations applied so far, over the whole job."""
        return self.progress.iteration

    @property
    def samples(self) -> int:
        """Samples consumed so far, over the whole job."""
        return self.progress.samples

    @property
    @abstractmethod
    def is_leader(self) -> bool:
        """Whether this process should evaluate, print and save."""

    @property
    def evaluates(self) -> bool:
        """Whether this process should call ``predict`` to evaluate the model.

        It is the leader; where several processes share a model, also those that share the leader's.
        """
        return self.is_leader

    def prepare(
        self,
        model: Any,
        optimizer: Any,
        *,
        micro_batches: int = 1,
        scheduler: Any = None,
        scaler: Any = None,
        extra: Mapping[str, Any] | None = None,
        loss: Loss | None = None,
        blocks: Iterable[Any] | None = None,
        tensor_plan: Mapping[str, str] | None = None,
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
            loss: Mean loss over a batch, called with outputs and targets; with it, ``step`` and
                ``predict`` train and evaluate the model, and several processes may share it.
            blocks: Modules of one argument each whose composition is the model, such as
                ``[model.embedding, *model.blocks, model.head]``; needed to cut a model into stages
                that is no ``nn.Sequential``.
            tensor_plan: How processes share the weights of modules, by patterns of their names:
                ``column``, ``row``, ``embedding``, ``head`` or ``qkv``; needed for modules that are
                not named as in well-known transformers.
        """
        self.framework = find_framework(model)
        self.sharing = SharingOptions(loss, None if blocks is None else tuple(blocks), tensor_plan)
        if loss is not None:
            self.model_steps = self.framework.model_steps(model, loss, scaler)
        named = {"scheduler": scheduler, "scaler": scaler, **(extra or {})}
        extra_state = {name: each for name, each in named.items() if each is not None}
        self._attach(self.framework, model, optimizer, micro_batches, extra_state)

    def step(self, inputs: Any, targets: Any) -> Any:
        """Make the forward and backward pass of a batch, in place of the script's own.

        The optimizer's step stays the script's. Every process that shares the model passes the
        same batch.

        Args:
            inputs: The model's inputs, shape (samples, ...).
            targets: What the loss compares its outputs with, shape (samples, ...).

        Returns:
            The batch's mean loss, without a graph.

        Raises:
            RuntimeError: ``prepare`` was not given a loss.
        """
        return self._steps_or_raise("step").step(inputs, targets)

    def predict(self, inputs: Any) -> Any:
        """Return the model's outputs without gradients; call it where ``evaluates`` is True.

        Raises:
            RuntimeError: ``prepare`` was not given a loss.
        """
        return self._steps_or_raise("predict").predict(inputs)

    def _steps_or_raise(self, called: str) -> ModelSteps:
        if self.model_steps is None:
            raise RuntimeError(
                f"job.{called} needs the loss: call job.prepare(model, optimizer, loss=...) first"
            )
        return self.model_steps

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
        order = SampleOrder(dataset_size, seed)
        yield from self._batches(order, global_batch, epochs * dataset_size, until)

    @abstractmethod
    def log(self, **metrics: Loggable) -> None:
        """Record named values of this iteration: floats, or tensors that are read later."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:  # noqa: B027
        """Close the session; an exception of the script passes through untouched."""

    @abstractmethod
    def _attach(
        self,
        framework: Framework,
        model: Any,
        optimizer: Any,
        micro_batches: int,
        extra_state: Mapping[str, Any],
    ) -> None:
        """Hook into the model and its optimizer; the extra state goes with them."""

    @abstractmethod
    def _batches(
        self, order: SampleOrder, global_batch: int, samples: float, until: Callable[[], bool]
    ) -> Iterator[Any]:
        """Yield indices; all but the order are for a script outside a job."""


class StandaloneSession(Session):
    """The session of a script outside a job: plain batches, nothing measured, nothing sent."""

    is_leader = True

    def log(self, **metrics: Loggable) -> None:
        pass

    def _attach(self, framework: Framework, model: Any, *_: Any) -> None:
        with suppress(TypeError):  # a model of another framework may not be remembered like this
            _PREPARED[model] = self.sharing

    def _batches(
        self, order: SampleOrder, global_batch: int, samples: float, until: Callable[[], bool]
    ) -> Iterator[Any]:
        framework = self.framework
        while self.samples < samples and not until():
            if framework is not None and self.is_deterministic:
                framework.seed(order.seed, self.samples)
            indices = order.indices(SampleRange(self.samples, global_batch))
            # Without prepare() the framework is unknown, and NumPy arrays index every one of them.
            yield indices if framework is None else framework.to_batch(indices)
            self.progress = replace(
                self.progress, iteration=self.iteration + 1, samples=self.samples + global_batch
            )
