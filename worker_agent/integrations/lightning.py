"""Lightning in a session.

::

with worker_agent.session() as job:
    trainer = lightning.Trainer(max_epochs=1, callbacks=[SessionCallback(job)])
    trainer.fit(model, session_loader(job, loader, epochs=30))
"""

from __future__ import annotations

from typing import Any

import lightning

from worker_agent.integrations.loader import session_loader
from worker_agent.session import Session

__all__ = ["SessionCallback", "session_loader"]


class SessionCallback(lightning.Callback):
    """Prepares the model, and logs its loss and what it validates."""

    def __init__(self, job: Session) -> None:
        self.job = job

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Connect model and optimizer.

        Raises:
            ValueError: The trainer is set up so that a job cannot divide its work.
        """
        if len(trainer.optimizers) != 1:
            raise ValueError(
                f"the model has {len(trainer.optimizers)} optimizers, and a job follows one: "
                "return one from configure_optimizers, or start the script with "
                "`scavenger agent run`"
            )
        if trainer.world_size != 1:
            raise ValueError(
                "the trainer starts processes of its own: give it devices=1 and no strategy; the "
                "job starts the workers"
            )
        if trainer.accumulate_grad_batches != 1:
            raise ValueError(
                "accumulate_grad_batches must be 1: the trainer would take several batches of the "
                "job for one"
            )
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        scheduler = schedulers[0] if schedulers else None
        self.job.prepare(pl_module, trainer.optimizers[0], scheduler=scheduler)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if outputs is not None:
            self.job.log(loss=outputs["loss"])

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self.job.log(**trainer.callback_metrics)
