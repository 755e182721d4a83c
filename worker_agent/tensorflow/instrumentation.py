"""`TensorFlowInstrumentation`: measures a TensorFlow script that does not import the agent.

``sitecustomize`` calls an ``install`` function when the script has imported a module that it
patches. A function that this version does not have goes unmeasured, which is logged once, and the
script runs as before.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from worker_agent.launcher.environment import NOT_DISTRIBUTED, STEPS_BEFORE_VERDICT
from worker_agent.launcher.patch import Patch
from worker_agent.launcher.step_records import MeasuredStep, StepFileWriter
from worker_agent.settings import InstrumentationSettings, read_instrumentation_settings
from worker_agent.tensorflow.replica_steps import ReplicaSteps
from worker_agent.tensorflow.ring import RowRing

log = logging.getLogger(__name__)

OLDEST_MEASURED = (2, 21)
READING_PERIOD = 0.5
NOTHING_SEEN = (
    "no step of a Keras optimizer was seen. Steps of other optimizers and of parameter servers are"
    " not measured"
)
OTHER_FRAMEWORKS = {"torch", "jax"}


class TensorFlowInstrumentation:
    """The agent inside one training process.

    Args:
        settings: What the launcher wants of this process.
        on_row: Takes every row; called in a background thread.
    """

    def __init__(
        self, settings: InstrumentationSettings, on_row: Callable[[MeasuredStep], None]
    ) -> None:
        self.settings, self.on_row = settings, on_row
        self.steps = ReplicaSteps(self._read_from, self.announce)
        self.ring: RowRing | None = None
        self.announced: str | None = None
        self.rows = 0
        self.process = os.getpid()
        self.closing = threading.Event()
        # A daemon thread: a script whose main thread has ended must still be able to exit.
        self.thread = threading.Thread(target=self._run, name="scavenger-rows", daemon=True)

    def announce(self, text: str) -> None:
        """Say in one line what is measured, or why nothing is; the first rank speaks for all."""
        if self.announced is None and self.settings.rank == 0:
            print(f"scavenger: {text}", file=sys.stderr, flush=True)
        self.announced = self.announced or text

    def close(self) -> None:
        """Write the rows of the last steps."""
        if self.process != os.getpid():
            return
        self.closing.set()
        if self.ring is not None:
            self.thread.join(2 * READING_PERIOD)
            self._take(self.ring, is_last=True)
        elif not OTHER_FRAMEWORKS & sys.modules.keys():
            self.announce(f"unmeasured: {NOTHING_SEEN}")

    def _read_from(self, ring: RowRing) -> None:
        if self.ring is None and self.process == os.getpid():
            self.ring = ring
            self.thread.start()

    def _run(self) -> None:
        while self.ring is not None and not self.closing.wait(READING_PERIOD):
            self._take(self.ring)

    def _take(self, ring: RowRing, *, is_last: bool = False) -> None:
        try:
            for row in ring.take(is_last=is_last):
                self.rows += 1
                if self.settings.rank == 0:
                    self.on_row(row)
        except Exception:
            self.ring = None
            log.exception("scavenger: steps are no longer read; training goes on unmeasured")
        if self.rows >= STEPS_BEFORE_VERDICT and self._trains_alone(ring):
            self._write_outcome(NOT_DISTRIBUTED)

    def _trains_alone(self, ring: RowRing) -> bool:
        """Whether this is one of several processes of which each trains the whole job."""
        return self.settings.workers > 1 and ring.layout.replicas == 1

    def _write_outcome(self, outcome: str) -> None:
        if self.settings.outcome is not None:
            Path(self.settings.outcome).write_text(outcome)


ACTIVE: list[TensorFlowInstrumentation] = []


def install_steps() -> None:
    """Patch the function that runs another one on each replica."""
    from tensorflow.python.distribute import mirrored_run

    patch(lambda each: each.steps.patches_of_steps(mirrored_run))


def install_keras() -> None:
    """Patch the optimizers of Keras 3 on TensorFlow."""
    loaded = sys.modules["keras.src.backend.tensorflow.optimizer"]
    name = "_all_reduce_sum_gradients"
    patch(lambda each: each.steps.patches_of_optimizers(loaded.TFOptimizer, name))


def install_tf_keras() -> None:
    """Patch the optimizers of tf_keras."""
    loaded = sys.modules["tf_keras.src.optimizers.utils"]
    patch(lambda each: each.steps.patches_of_optimizers(loaded, "all_reduce_sum_gradients"))


def patch(patches: Callable[[TensorFlowInstrumentation], tuple[Patch, ...]]) -> None:
    """Apply patches, if the launcher wants measurements; training goes on without what fails."""
    instrumentation = open_instrumentation()
    if instrumentation is None:
        return
    try:
        for each in patches(instrumentation):
            each.apply()
    except Exception:
        log.exception("scavenger: TensorFlow %s is not measured completely", tf.__version__)


def open_instrumentation() -> TensorFlowInstrumentation | None:
    """Return the instrumentation of this process; None if nothing is to be measured."""
    settings = read_instrumentation_settings()
    if settings.rows is None:
        return None
    if not ACTIVE:
        on_row = StepFileWriter(Path(settings.rows), "tensorflow").write
        ACTIVE.append(TensorFlowInstrumentation(settings, on_row))
        atexit.register(ACTIVE[0].close)
    (instrumentation,) = ACTIVE
    if is_too_old(tf.__version__):
        oldest = ".".join(map(str, OLDEST_MEASURED))
        instrumentation.announce(
            f"unmeasured: TensorFlow {tf.__version__} is older than {oldest}: install a newer one"
        )
        return None
    return instrumentation


def is_too_old(version: str) -> bool:
    """Whether a version of TensorFlow is older than those that are measured.

    >>> is_too_old("2.9.1"), is_too_old("2.21.0"), is_too_old("2.22.0rc0")
    (True, False, False)
    """
    numbers = version.split(".")[: len(OLDEST_MEASURED)]
    return [int(number) for number in numbers] < list(OLDEST_MEASURED)
