"""Keras' ``fit`` in a session, on Keras' PyTorch backend.

::

model.compile(optimizer, loss)
with worker_agent.session() as job:
    batches = session_loader(job, model, loader, epochs=30)
    callback = KerasSessionCallback(job)
    model.fit(batches, steps_per_epoch=100, epochs=callback.epochs, callbacks=[callback])
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import keras
import torch
from torch.utils.data import DataLoader

from worker_agent.integrations import loader as loaders
from worker_agent.pytorch.keras import KerasOptimizerState
from worker_agent.session import Session


class KerasOptimizerStep(torch.optim.Optimizer):
    """An optimizer of Keras as one of PyTorch, which is what a session averages gradients for.

    Its state travels beside it, since Keras keeps it in variables of its own: see `state_dict` of
    `KerasOptimizerState`.

    Args:
        model: A compiled model that is built.
    """

    def __init__(self, model: Any) -> None:
        self.keras_optimizer, self.variables = model.optimizer, model.trainable_variables
        self.apply = model.optimizer.apply
        rate = float(model.optimizer.learning_rate)
        super().__init__([each.value for each in self.variables], {"lr": rate})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update the weights by the gradients that PyTorch holds; without gradients do nothing."""
        gradients = [each.value.grad for each in self.variables]
        if all(gradient is None for gradient in gradients):
            return  # the session lets this pass not count
        written = float(self.keras_optimizer.learning_rate)
        # A session scales the rate of the group while it steps; callbacks may change Keras' own.
        self.keras_optimizer.learning_rate = self.param_groups[0]["lr"]
        with torch.no_grad():
            self.apply(gradients, self.variables)
        self.keras_optimizer.learning_rate = written

    def apply_averaged(self, gradients: Any, variables: Any = None) -> None:
        """Take the place of the ``apply`` of Keras' optimizer, by which ``fit`` steps."""
        self.param_groups[0]["lr"] = float(self.keras_optimizer.learning_rate)
        self.step()


class KerasSessionCallback(keras.callbacks.Callback):
    """Prepares the model, and logs its loss and what it validates.

    Args:
        job: The session.

    Attributes:
        epochs: What to give ``fit`` for ``epochs``: the job ends it.
    """

    epochs = loaders.ENDLESS

    def __init__(self, job: Session) -> None:
        super().__init__()
        self.job = job
        self.step: KerasOptimizerStep | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Connect model and optimizer.

        Raises:
            ValueError: The optimizer does what a job cannot follow.
        """
        check_model(self.model)
        self.step = KerasOptimizerStep(self.model)
        self.model.optimizer.apply = self.step.apply_averaged
        extra = {"keras_optimizer": KerasOptimizerState(self.model.optimizer)}
        self.job.prepare(self.model, self.step, extra=extra)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.reset_metrics()  # or the logged loss would be a mean of all batches so far

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.job.log(loss=logs["loss"])

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        validated = {name: value for name, value in logs.items() if name.startswith("val_")}
        if validated:
            self.job.log(**validated)

    def on_train_end(self, logs: Any = None) -> None:
        if self.step is not None:
            self.model.optimizer.apply, self.step = self.step.apply, None


def session_loader(
    job: Session,
    model: Any,
    loader: DataLoader[Any],
    *,
    epochs: float,
    global_batch: int | None = None,
    seed: int = 0,
) -> DataLoader[Any]:
    """Return what to give ``fit``: it draws from the session what a loader would draw by itself.

    Args:
        job: The session.
        model: A compiled model; one that is not built yet is built for the loader's batches.
        loader: The loader that the script has, of pairs of inputs and targets.
        epochs: Epochs outside a job.
        global_batch: Batch outside a job; that of the loader if None.
        seed: Seed of the data order, the same on every worker.

    Raises:
        ValueError: The optimizer or the data set does not fit.
    """
    check_model(model)
    # Keras builds model and metrics when it sees a batch, and would take one of the job's for it.
    model.test_on_batch(*next(iter(loader)))
    model.reset_metrics()

    def stop() -> None:
        model.stop_training = True

    batches = loaders.session_loader(
        job, loader, epochs=epochs, global_batch=global_batch, seed=seed, on_end=stop
    )
    return EndingLoader(batches.dataset, batch_size=None, pin_memory=loader.pin_memory)


class EndingLoader(DataLoader[Any]):
    """A loader whose end is expected, so Keras has no reason to warn that it ran out of data."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        yield from super().__iter__()
        warnings.filterwarnings("ignore", message="Your input ran out of data")


def check_model(model: Any) -> None:
    """Refuse what a job cannot follow.

    Raises:
        ValueError: Says what, and what to do instead.
    """
    if keras.backend.backend() != "torch":
        raise ValueError(
            f"Keras runs on {keras.backend.backend()}, and a session follows PyTorch: set "
            "KERAS_BACKEND=torch before Keras is imported, or start the script with `scavenger "
            "agent run`"
        )
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        raise ValueError("the model has no optimizer: call model.compile before the session")
    if model.jit_compile:
        raise ValueError(
            "jit_compile would hide the gradients from the session: compile the model with "
            "jit_compile=False"
        )
    if optimizer.gradient_accumulation_steps:
        raise ValueError(
            "gradient_accumulation_steps must not be set: the optimizer would take several batches "
            "of the job for one; set a smaller batch in the job's limits"
        )
    if optimizer.loss_scale_factor or hasattr(optimizer, "inner_optimizer"):
        raise ValueError("a scaled loss is not followed: compile with auto_scale_loss=False")
    if isinstance(
        getattr(optimizer, "_learning_rate", None), keras.optimizers.schedules.LearningRateSchedule
    ):
        raise ValueError(
            "the learning rate is a schedule that counts steps, and their number changes with the "
            "batch: give the optimizer a number, and set model.optimizer.learning_rate by "
            "job.samples in a callback"
        )
