"""Hugging Face Trainer in a session.

::

with worker_agent.session() as job:
    trainer = Trainer(model=model, args=args, train_dataset=dataset)
    connect(trainer, job)
    trainer.train()
"""

from __future__ import annotations

from typing import Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from worker_agent.integrations.loader import session_loader
from worker_agent.session import Session


class SessionTrainerCallback(TrainerCallback):
    """Prepares the model, follows the count of iterations, and logs what is evaluated.

    Args:
        job: The session.
        samples: Samples in the data set.
    """

    def __init__(self, job: Session, samples: int) -> None:
        self.job, self.samples = job, samples

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **known: Any,
    ) -> None:
        # Accelerate wraps both; its wrappers have no state of their own.
        optimizer, scheduler = (
            getattr(known[name], inner, known[name])
            for name, inner in (("optimizer", "optimizer"), ("lr_scheduler", "scheduler"))
        )
        self.job.prepare(known["model"], optimizer, scheduler=scheduler)

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_: Any,
    ) -> None:
        # One worker runs some loop bodies twice for one iteration: the trainer would count both.
        state.global_step = self.job.iteration + 1
        state.epoch = self.job.samples / self.samples
        if not self.job.is_leader:
            control.should_save = control.should_evaluate = False

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        self.job.log(**(metrics or {}))

    def on_epoch_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_: Any,
    ) -> None:
        control.should_training_stop = True  # all epochs are one pass of the loader


def connect(trainer: Trainer, job: Session, global_batch: int | None = None) -> None:
    """Let a trainer train as the job says; call it before ``trainer.train()``.

    Args:
        trainer: The trainer; outside a job it trains for its own ``num_train_epochs``.
        job: The session.
        global_batch: Batch outside a job; ``per_device_train_batch_size`` if None.

    Raises:
        ValueError: The trainer's arguments would be wrong under a batch that changes.
    """
    check_arguments(trainer)
    loader, step = trainer.get_train_dataloader(), trainer.training_step

    def stop() -> None:
        trainer.control.should_training_stop = True

    def get_train_dataloader() -> Any:
        return session_loader(
            job,
            loader,
            epochs=trainer.args.num_train_epochs,
            global_batch=global_batch or trainer.args.per_device_train_batch_size,
            seed=trainer.args.seed,
            on_end=stop,
        )

    def training_step(*arguments: Any, **options: Any) -> Any:
        loss = step(*arguments, **options)
        job.log(loss=loss)
        return loss

    trainer.get_train_dataloader = get_train_dataloader
    trainer.training_step = training_step
    trainer.add_callback(SessionTrainerCallback(job, len(loader.dataset)))


def check_arguments(trainer: Trainer) -> None:
    """Refuse arguments that count in steps, which become another number when the batch changes.

    Raises:
        ValueError: Says which, and what to write instead.
    """
    if trainer.args.gradient_accumulation_steps != 1:
        raise ValueError(
            "gradient_accumulation_steps must be 1: the trainer would take several batches of the "
            "job for one; set a smaller batch in the job's limits"
        )
    kind = str(getattr(trainer.args.lr_scheduler_type, "value", trainer.args.lr_scheduler_type))
    if trainer.lr_scheduler is None and kind != "constant":
        raise ValueError(
            f"lr_scheduler_type {kind!r} counts steps, and their number changes with the batch: "
            'write lr_scheduler_type="constant", or give the trainer optimizers=(optimizer, '
            "LambdaLR(optimizer, ...)) with a schedule by job.samples"
        )
