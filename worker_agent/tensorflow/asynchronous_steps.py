"""`AsynchronousSteps`: measures ``ParameterServerStrategy``, whose workers do not wait.

Each step of a worker writes a row into a ring on the first server, beside its update: how long it
computed, the norm of its gradient and a sketch of it, and how many pushes the servers had when it
read its weights. The coordinator reads the ring from a thread; nothing is returned to the script.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import tensorflow as tf
import tensorflow.experimental.numpy as tnp

from worker_agent.launcher.step_records import MeasuredStep
from worker_agent.tensorflow.gradient_sketch import SKETCH_WIDTH, GradientSketch
from worker_agent.tensorflow.push_ring import PushRing
from worker_agent.tensorflow.push_rows import ROUNDS_KEPT, PushRows
from worker_agent.tensorflow.traced_step import (
    TracedStep,
    current_graph,
    squared_norm,
    values_of,
)

log = logging.getLogger(__name__)

PUSHES_PERIOD = 0.2
CLOSING_PATIENCE = 5.0
READ = "ReadVariableOp"
SEVERAL_DEVICES = "asynchronous workers that have several devices each"


class AsynchronousSteps:
    """Measures the steps that a coordinator schedules on workers.

    Args:
        announce: Told what is measured, or why nothing is.
        on_row: Takes every row; called in a background thread.
        on_metrics: Takes the staleness of each row, before the row.
    """

    def __init__(
        self,
        announce: Callable[[str], None],
        on_row: Callable[[MeasuredStep], None],
        on_metrics: Callable[[Mapping[str, float]], None],
    ) -> None:
        self.announce, self.on_row, self.on_metrics = announce, on_row, on_metrics
        self.rows: PushRows | None = None
        self.closing = threading.Event()
        # A daemon thread: a script whose main thread has ended must still be able to exit.
        self.thread = threading.Thread(target=self._run, name="scavenger-pushes", daemon=True)

    @property
    def has_begun(self) -> bool:
        """Whether this process coordinates such training."""
        return self.rows is not None

    @cached_property
    def ring(self) -> PushRing:
        return PushRing()

    def pushes_seen(self) -> Any:
        """Return the number of pushes at the beginning of the step that is being traced."""
        return self.ring.pushes_now()

    def push(self, strategy: Any, pairs: Sequence[tuple[Any, Any]], step: TracedStep) -> None:
        """Add the operations that write a step down, beside the update that it is.

        Args:
            strategy: The ``ParameterServerStrategy``.
            pairs: The step's gradients and their variables.
            step: Its beginning.
        """
        if strategy.num_replicas_in_sync > 1:
            self.announce(f"unmeasured: {SEVERAL_DEVICES}")
            return
        gradients = [gradient for gradient, _ in pairs]
        with tf.control_dependencies([step.began_at, *weights_read(pairs)]):
            pulled_at = tf.timestamp()
        with tf.control_dependencies([values_of(each) for each in gradients]):
            ready_at = tf.timestamp()
        # The clock that notes the last weight may run after the gradients of a small model.
        compute_time = tf.maximum(ready_at - pulled_at, 0.0)
        local = tf.add_n([squared_norm(each) for each in gradients])
        told = [number_of_worker(), step.began_at, compute_time, local, step.samples]
        # Stacked here, since each tensor that travels takes a call of its own.
        row = tf.stack([tf.cast(each, tf.float64) for each in told])
        self.ring.write(row, step.seen, sketch_of(pairs))
        if self.rows is None:
            workers = strategy.extended._num_workers
            self.rows = PushRows(workers)
            self.announce(f"measured: ParameterServerStrategy, asynchronous, workers: {workers}")
            self.thread.start()

    def close(self) -> None:
        """Wait a moment until the last pushes are read; servers may be gone."""
        self.closing.set()
        if self.thread.is_alive():
            self.thread.join(CLOSING_PATIENCE)

    def _run(self) -> None:
        try:
            while not self.closing.wait(PUSHES_PERIOD):
                self._read()
            self._read()
        except Exception:
            if self.closing.is_set():
                log.debug("the last pushes are not read", exc_info=True)
            else:
                log.exception("scavenger: steps are no longer read; training goes on unmeasured")

    def _read(self) -> None:
        """Read what has been written since the last time."""
        assert self.rows is not None
        while True:
            pushes, products = self.ring.take(before=ROUNDS_KEPT * self.rows.workers)
            if not pushes:
                return
            for push in pushes:
                row = self.rows.add(push, products)
                if row is None:
                    continue
                if self.rows.staleness is not None:
                    self.on_metrics({"staleness": self.rows.staleness})
                self.on_row(row)


def is_asynchronous(strategy: Any) -> bool:
    """Whether a strategy is TensorFlow's own for asynchronous training with a coordinator."""
    return isinstance(strategy, tf.distribute.experimental.ParameterServerStrategy)


def weights_read(pairs: Sequence[tuple[Any, Any]]) -> list[Any]:
    """Return the weights as the step reads them; what no operation uses would be sent twice."""
    handles = {id(variable.handle) for _, variable in pairs if hasattr(variable, "handle")}
    captures = getattr(current_graph(), "captures", ())
    here = [inside for outside, inside in captures if id(outside) in handles]
    reads = [each for handle in here for each in handle.consumers() if each.type == READ]
    return [each.outputs[0] for each in reads if each.outputs[0].consumers()]


def sketch_of(pairs: Sequence[tuple[Any, Any]]) -> Any:
    """Return the sketch of the gradients of these variables, laid end to end."""
    dense = [tf.cast(tf.convert_to_tensor(gradient), tf.float32) for gradient, _ in pairs]
    # A sparse gradient need not know its shape when it is traced.
    size = sum(math.prod(variable.shape) for _, variable in pairs)
    sketch = GradientSketch(size)
    flat = [tf.reshape(each, [-1]) for each in dense]
    zeros = tf.zeros([sketch.padded - size])
    return tf.ensure_shape(sketch.of(tf.concat([*flat, zeros], 0), tnp), [SKETCH_WIDTH])


def number_of_worker() -> Any:
    """Return a number that each start of a worker chooses for itself at its first step.

    It is kept on the worker, by a handle that all steps there share: one function is traced for
    all workers, and none of them knows its index.
    """
    handle = tf.raw_ops.VarHandleOp(
        dtype=tf.float64, shape=[], shared_name="scavenger/worker", container=""
    )

    def choose() -> Any:
        microseconds = tf.floor(tf.timestamp() * 1e6)
        with tf.control_dependencies(
            [tf.raw_ops.AssignVariableOp(resource=handle, value=microseconds)]
        ):
            return tf.identity(microseconds)

    return tf.cond(
        tf.raw_ops.VarIsInitializedOp(resource=handle),
        lambda: tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float64),
        choose,
    )
