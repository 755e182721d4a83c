"""Standing: how far a job has come, counted over all starts of its script."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from scavenger.protocol import Directive, Progress
from worker_agent.hooks.rows import Measured


@dataclass(frozen=True, slots=True)
class Standing:
    """How far the job has come.

    Attributes:
        iteration: Iterations so far.
        samples: Samples so far, as far as forward passes showed them.
        epochs: Progress in reference epochs.
        provisional: The part of it that was counted while noise had not settled.
    """

    iteration: int = 0
    samples: int = 0
    epochs: float = 0.0
    provisional: float = 0.0

    def after(self, row: Measured, directive: Directive) -> Standing:
        """Return the standing after one more iteration."""
        return replace(
            self,
            iteration=self.iteration + 1,
            samples=self.samples + (row.samples or directive.config.global_batch),
            epochs=self.epochs + directive.progress_per_iteration,
            provisional=self.provisional
            + directive.progress_per_iteration * directive.is_provisional,
        )

    def entering(self, directive: Directive) -> Standing:
        """Return the standing as a generation counts it; see ``Clock.entering``."""
        if directive.is_provisional or not self.provisional:
            return self
        corrected = self.epochs + self.provisional * (directive.correction - 1)
        return replace(self, epochs=corrected, provisional=0.0)

    def to_progress(self, generation: int) -> Progress:
        """Return it in the controller's words."""
        return Progress(generation, self.iteration, self.samples, self.epochs, {})


def read_standing(path: Path) -> Standing:
    """Read what a launcher, maybe of another machine, has written; the beginning if nothing."""
    with suppress(OSError, ValueError, TypeError):
        return Standing(**json.loads(path.read_text()))
    return Standing()


def write_standing(path: Path, standing: Standing) -> None:
    """Write it for the next start; without it the count begins anew, training does not."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(standing)))
        fresh.replace(path)
