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
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from worker_agent.launcher.announcement import Announcement
from worker_agent.launcher.environment import (
    EXIT_STOPPED,
    LOST_PEERS,
    NOT_DISTRIBUTED,
    STEPS_BEFORE_VERDICT,
    is_peer_loss,
    stop_process,
    write_outcome,
)
from worker_agent.launcher.patch import Patch
from worker_agent.launcher.step_records import MeasuredStep, StepFileWriter
from worker_agent.settings import InstrumentationSettings, read_instrumentation_settings
from worker_agent.state.progress import TrainingProgress
from worker_agent.tensorflow.asynchronous_steps import AsynchronousSteps
from worker_agent.tensorflow.fit import (
    Metrics,
    patches_of_callbacks,
    patches_of_data_sets,
    patches_of_keras_fit,
)
from worker_agent.tensorflow.replica_steps import ReplicaSteps
from worker_agent.tensorflow.ring import RowRing
from worker_agent.tensorflow.server_training import ServerTraining
from worker_agent.tensorflow.warm_restart import KerasRestart

log = logging.getLogger(__name__)

OLDEST_MEASURED = (2, 21)
READING_PERIOD = 0.5
GATE_POLL = 0.02
NOTHING_SEEN = (
    "no step of a Keras optimizer or of SyncReplicasOptimizer was seen. Steps of others are not"
    " measured"
)
OTHER_FRAMEWORKS = {"torch", "jax"}


class TensorFlowInstrumentation:
    """The agent inside one training process.

    Args:
        settings: What the launcher wants of this process.
        on_row: Takes every row; called in a background thread.
        on_metrics: Takes the metrics of an epoch; called in the training thread.
    """

    def __init__(
        self,
        settings: InstrumentationSettings,
        on_row: Callable[[MeasuredStep], None],
        on_metrics: Callable[[Metrics], None],
    ) -> None:
        self.settings, self.on_row, self.on_metrics = settings, on_row, on_metrics
        self.announce = Announcement(settings.rank)
        self.restart: KerasRestart | None = None
        if settings.stop_request is not None:
            self.restart = KerasRestart(
                settings, self._progress, self._go_on_from, self._read_last_rows
            )
        self.asynchronous = AsynchronousSteps(self.announce, on_row, on_metrics)
        self.steps = ReplicaSteps(
            self._read_from,
            self.announce,
            on_variables=self._note_variables,
            between_steps=None if self.restart is None else self._between_steps,
            asynchronous=self.asynchronous,
            is_first=settings.rank == 0,
        )
        self.servers = ServerTraining(settings, self.announce, on_row)
        self.ring: RowRing | None = None
        self.restored = TrainingProgress()
        self.rows = 0
        self.reading = threading.Lock()
        self.process = os.getpid()
        self.closing = threading.Event()
        # A daemon thread: a script whose main thread has ended must still be able to exit.
        self.thread = threading.Thread(target=self._run, name="scavenger-rows", daemon=True)

    @property
    def has_begun(self) -> bool:
        """Whether this process trains in one of the ways that are measured."""
        has_ring = self.ring is not None
        return has_ring or self.servers.has_begun or self.asynchronous.has_begun

    def patches_of_checkpoints(self, owner: Any, *names: str, place: int = 1) -> tuple[Patch, ...]:
        """Return the patches of functions that restore what the script has saved at a path."""
        if self.restart is None:
            return ()
        return self.restart.patches_of_checkpoints(owner, *names, place=place)

    def patches_of_data_sets(self, owner: Any) -> tuple[Patch, ...]:
        """Return the patches by which data sets have the job's batch."""
        batch = self.settings.rebatch
        return () if batch is None else patches_of_data_sets(owner, batch)

    def wait_at_gate(self, *_: Any) -> None:
        """Wait where the strategy is made, while the process before this one still trains."""
        gate, arrived, parent = self.settings.gate, self.settings.arrived, os.getppid()
        if gate is None or arrived is None:
            return
        Path(arrived).touch()
        while not Path(gate).exists():
            if os.getppid() != parent:
                os._exit(EXIT_STOPPED)  # the launcher is gone
            time.sleep(GATE_POLL)

    def tell_that_it_serves(self, *_: Any) -> None:
        """Tell the launcher that this process waits for a coordinator that schedules its steps."""
        if self.settings.joined is not None:
            Path(self.settings.joined).touch()

    def before_schedule(self, *_: Any) -> None:
        """Stop where a coordinator schedules the next step, if the launcher asks for it."""
        stop = self.settings.stop_request
        if stop is not None and Path(stop).exists():
            self.asynchronous.close()
            stop_process(self.settings)

    def script_fails(self, _: Any, error: BaseException, __: Any) -> None:
        """Tell the launcher of an error that means that another process is gone."""
        if self.restart is not None and is_peer_loss(error):
            write_outcome(self.settings, LOST_PEERS)

    def close(self) -> None:
        """Write the rows of the last steps."""
        if self.process != os.getpid():
            return
        self.asynchronous.close()
        if self.ring is not None:
            self._read_last_rows()
        elif not (self.has_begun or OTHER_FRAMEWORKS & sys.modules.keys()):
            self.announce(f"unmeasured: {NOTHING_SEEN}")

    def _read_from(self, ring: RowRing) -> None:
        if self.ring is None and self.process == os.getpid():
            self.ring = ring
            self.thread.start()

    def _run(self) -> None:
        stop = self.settings.stop_request
        while self.ring is not None and not self.closing.wait(READING_PERIOD):
            self._take(self.ring)
            if self.restart is None or self.settings.rank != 0:
                continue
            if stop is not None and Path(stop).exists():
                self.steps.signals.wish.assign(1.0)
            if self.restart.is_checkpoint_due:
                self.steps.signals.gate.assign_add(1.0)

    def _read_last_rows(self) -> None:
        self.closing.set()
        if self.ring is not None:
            self._take(self.ring, is_last=True)

    def _take(self, ring: RowRing, *, is_last: bool = False) -> None:
        try:
            with self.reading:
                for row in ring.take(is_last=is_last):
                    self.rows += 1
                    if self.settings.rank == 0:
                        self.on_row(row)
        except Exception:
            self.ring = None
            log.exception("scavenger: steps are no longer read; training goes on unmeasured")
        if self.rows >= STEPS_BEFORE_VERDICT and self._trains_alone(ring):
            write_outcome(self.settings, NOT_DISTRIBUTED)

    # Between two steps.

    def _note_variables(self, variables: Sequence[Any]) -> None:
        if self.restart is not None:
            self.restart.on_variables(variables)

    def _between_steps(self) -> None:
        if self.restart is not None:
            self.restart.between_steps(self.steps.signals)

    def _go_on_from(self, progress: TrainingProgress) -> None:
        self.restored = progress

    def _progress(self) -> TrainingProgress:
        """Return where training stands between two steps."""
        ring, before = self.ring, self.restored
        if ring is None:
            return before
        self._take(ring)
        iteration, samples = before.iteration + ring.read, before.samples + ring.samples
        return replace(before, iteration=iteration, samples=samples)

    def _trains_alone(self, ring: RowRing) -> bool:
        """Whether this is one of several processes of which each trains the whole job."""
        return self.settings.workers > 1 and ring.layout.replicas == 1


ACTIVE: list[TensorFlowInstrumentation] = []


def install_steps() -> None:
    """Patch what runs a step, on replicas or with servers, and what restores a checkpoint."""
    from tensorflow.python.checkpoint.checkpoint import Checkpoint
    from tensorflow.python.distribute import mirrored_run
    from tensorflow.python.distribute.collective_all_reduce_strategy import (
        CollectiveAllReduceStrategy,
    )
    from tensorflow.python.distribute.coordinator.cluster_coordinator import ClusterCoordinator
    from tensorflow.python.distribute.distribute_lib import StrategyBase
    from tensorflow.python.training.server_lib import Server

    spare_tasks = read_instrumentation_settings().spare_tasks
    if spare_tasks:
        add_tasks_to_servers(Server, spare_tasks)
    patch(lambda each: each.steps.patches_of_steps(mirrored_run))
    patch(lambda each: (Patch(Server, "join", before=each.tell_that_it_serves),))
    patch(lambda each: (Patch(ClusterCoordinator, "schedule", before=each.before_schedule),))
    patch(lambda each: (Patch(CollectiveAllReduceStrategy, "__init__", each.wait_at_gate),))
    patch(lambda each: each.patches_of_checkpoints(Checkpoint, "restore", "read"))
    patch(lambda each: each.patches_of_data_sets(StrategyBase))
    patch(lambda each: tuple(each.servers.patches()))
    # Lets the launcher tell a script that failed from one that lost its peers.
    patch(lambda each: (Patch(sys, "excepthook", before=each.script_fails),))


def add_tasks_to_servers(server: Any, spare_tasks: Sequence[str]) -> None:
    """Let the server of this process know more workers than the script names."""

    def add_tasks(this: Any, cluster: Any, *rest: Any) -> tuple[Any, ...]:
        known = tf.train.ClusterSpec(cluster).as_dict()
        workers = [*known.get("worker", []), *spare_tasks]
        return (this, tf.train.ClusterSpec({**known, "worker": workers}), *rest)

    Patch(server, "__init__", before=add_tasks).apply()


def install_keras() -> None:
    """Patch the optimizers of Keras 3 on TensorFlow."""
    loaded = sys.modules["keras.src.backend.tensorflow.optimizer"]
    name = "_all_reduce_sum_gradients"
    patch(lambda each: each.steps.patches_of_optimizers(loaded.TFOptimizer, name))


def install_keras_fit() -> None:
    """Patch ``fit`` of Keras 3 on TensorFlow, which is imported with its callbacks."""
    loaded = sys.modules["keras.src.backend.tensorflow.trainer"]
    patch(lambda _: patches_of_keras_fit(loaded))
    callbacks = loaded.callbacks_module.CallbackList
    patch(lambda each: patches_of_callbacks(callbacks, each.on_metrics, are_summed=False))
    patch(patches_of_keras_saving)


def patches_of_keras_saving(instrumentation: TensorFlowInstrumentation) -> tuple[Patch, ...]:
    """Return the patches of what Keras 3 loads files with.

    Its public functions have been imported elsewhere by now; those that they call have not.
    """
    names = ("saving.saving_api", "saving.saving_lib", "legacy.saving.legacy_h5_format")
    api, library, old = (sys.modules[f"keras.src.{name}"] for name in names)
    return (
        *instrumentation.patches_of_checkpoints(api, "load_weights"),
        *instrumentation.patches_of_checkpoints(library, "load_model", place=0),
        *instrumentation.patches_of_checkpoints(old, "load_model_from_hdf5", place=0),
    )


def install_tf_keras() -> None:
    """Patch the optimizers of tf_keras."""
    loaded = sys.modules["tf_keras.src.optimizers.utils"]
    patch(lambda each: each.steps.patches_of_optimizers(loaded, "all_reduce_sum_gradients"))


def install_tf_keras_fit() -> None:
    """Patch the callbacks of tf_keras."""
    callbacks = sys.modules["tf_keras.src.callbacks"].CallbackList
    patch(lambda each: patches_of_callbacks(callbacks, each.on_metrics, are_summed=True))


def install_tf_keras_saving() -> None:
    """Patch what tf_keras loads files with."""
    loaded = sys.modules["tf_keras.src.saving.saving_api"]
    patch(lambda each: each.patches_of_checkpoints(loaded, "load_weights"))
    patch(lambda each: each.patches_of_checkpoints(loaded, "load_model", place=0))


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
        file = StepFileWriter(Path(settings.rows), "tensorflow")
        ACTIVE.append(TensorFlowInstrumentation(settings, file.write, file.add_metrics))
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
    """Whether a version of TensorFlow is older than those that are measured."""
    numbers = version.split(".")[: len(OLDEST_MEASURED)]
    return [int(number) for number in numbers] < list(OLDEST_MEASURED)
