"""`ReplicaSteps`: measures the training steps of ``tf.distribute`` without a collective of its own.

A vector of a few numbers travels as one more gradient in the step's own reduction: the squared
norm of this replica's gradients, its samples, its times, and what the chief wants. Its sum is the
same on all replicas, so all of them also learn in the same step that training is to stop. What
was reduced is written to a ring of rows beside the step, which a thread reads; no step waits for
the host.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.impl import api as autograph
from tensorflow.python.eager import def_function
from tensorflow.python.ops import control_flow_util

from worker_agent.launcher.patch import Patch
from worker_agent.tensorflow.asynchronous_steps import AsynchronousSteps, is_asynchronous
from worker_agent.tensorflow.ring import RingLayout, RowRing, StepSignals
from worker_agent.tensorflow.traced_step import (
    TracedStep,
    current_graph,
    squared_norm,
    values_of,
)

log = logging.getLogger(__name__)

# What users call the strategies that TensorFlow itself calls otherwise.
PUBLIC_NAMES = {
    "CollectiveAllReduceStrategy": "MultiWorkerMirroredStrategy",
    "_DefaultDistributionStrategy": "no strategy",
}
XLA_STEP = "steps that XLA compiles: remove jit_compile=True"

Announce = Callable[[str], None]


class ReplicaSteps:
    """Measures every step in which a Keras optimizer sums gradients over replicas.

    Args:
        on_ring: Called once, with the ring that rows are read from.
        announce: Told what is measured, or why nothing is.
        on_variables: Told the variables that a step trains when it is traced.
        between_steps: Called before the first step and whenever ``signals.gate`` is set; None where
            nothing is to be done between steps.
        asynchronous: Measures steps whose gradients are not summed.
        is_first: Whether this is the process whose rows are read.
    """

    def __init__(
        self,
        on_ring: Callable[[RowRing], None],
        announce: Announce,
        on_variables: Callable[[Sequence[Any]], None],
        between_steps: Callable[[], None] | None,
        asynchronous: AsynchronousSteps,
        *,
        is_first: bool,
    ) -> None:
        self.on_ring, self.announce = on_ring, announce
        self.on_variables, self.between_steps = on_variables, between_steps
        self.asynchronous, self.is_first = asynchronous, is_first
        self.tracing = threading.local()
        self.rings: dict[int, RowRing] = {}

    @cached_property
    def signals(self) -> StepSignals:
        """Made with the first step: the script configures its devices before."""
        return StepSignals(is_gate_set=self.between_steps is not None)

    def patches_of_steps(self, mirrored_run: Any) -> tuple[Patch, ...]:
        """Return the patch of the module that runs a function on each replica."""
        return (Patch(mirrored_run, "call_for_each_replica", before=self._step_is_called),)

    def patches_of_optimizers(self, owner: Any, name: str) -> tuple[Patch, ...]:
        """Return the patch of the function that sums gradients, whose last argument they are."""
        return (Patch(owner, name, before=self._before_sum, result=self._after_sum),)

    # The beginning of a step.

    def _step_is_called(
        self, strategy: Any, function: Any, arguments: Any = None, options: Any = None
    ) -> tuple[Any, ...] | None:
        """Plant a clock before a function that is traced for each replica."""
        # It calls itself again with the Python function inside.
        if isinstance(function, def_function.Function) or is_compiled_by_xla():
            return None
        if not tf.executing_eagerly():
            # As TensorFlow does; it would stop at the wrapper, which is not to be converted.
            function = autograph.tf_convert(function, ag_ctx.control_status_ctx())
        return strategy, self._with_clock(function, strategy), arguments, options

    def _with_clock(self, function: Any, strategy: Any) -> Any:
        def step(*arguments: Any, **options: Any) -> Any:
            waits = self._plant(strategy, [arguments, options])
            with tf.control_dependencies(waits), tf.variable_creator_scope(create_at_once):
                return function(*arguments, **options)

        return tf.autograph.experimental.do_not_convert(step)

    def _plant(self, strategy: Any, called_with: Sequence[Any]) -> list[Any]:
        """Return operations that the step is to wait for; an error never reaches the script."""
        try:
            flat = tf.nest.flatten(called_with)
            inputs = [each for each in flat if isinstance(each, tf.Tensor)]
            is_alone = is_asynchronous(strategy)
            work = None if is_alone else self.between_steps  # other workers are not between steps
            waits = [] if work is None else [self._plant_gate(work, inputs)]
            # Planted later, it would wait for the first part of the step.
            with tf.control_dependencies([*inputs, *waits]):
                began_at = tf.timestamp()
            sized = (each for each in inputs if each.shape.rank)
            first = next(sized, None)
            samples = tf.constant(0.0) if first is None else tf.cast(tf.shape(first)[0], tf.float32)
            seen = self.asynchronous.pushes_seen() if is_alone else tf.constant(-1.0)
            self.tracing.step = TracedStep(current_graph(), began_at, samples, seen)
        except Exception:
            log.exception("scavenger: the steps of this function are not measured")
            return []
        return waits

    def _plant_gate(self, work: Callable[[], None], inputs: Sequence[Any]) -> Any:
        """Return an operation that does what is asked between the step before and this one."""

        def do_work() -> int:
            work()
            return 0

        with tf.device("/cpu:0"), tf.control_dependencies(inputs):
            return tf.cond(
                self.signals.gate.read_value() > 0,
                lambda: tf.ensure_shape(tf.py_function(do_work, [], tf.int32), []),
                lambda: tf.constant(0),
            )

    # The reduction.

    def _before_sum(self, *arguments: Any) -> tuple[Any, ...] | None:
        """Append the vector that travels to the gradients of a replica."""
        self.tracing.appended = None
        context = tf.distribute.get_replica_context()
        pairs = list(arguments[-1])
        live = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        strategy = tf.distribute.get_strategy()
        is_alone = is_asynchronous(strategy)
        if not (live and (context is not None or is_alone)):
            return None
        if is_compiled_by_xla():
            self.announce(f"unmeasured: {XLA_STEP}")
            return None
        if is_alone:
            self._push(strategy, live)
            return None
        self.on_variables([variable for _, variable in live])
        reduction = ReductionPart(self._ring(context), context, self._traced_step())
        vector = reduction.vector([gradient for gradient, _ in live])
        self.tracing.appended = reduction
        return (*arguments[:-1], [*pairs, (vector, live[-1][1])])

    def _push(self, strategy: Any, live: Sequence[tuple[Any, Any]]) -> None:
        """Write an asynchronous step down, whose gradients go to the servers as they are."""
        self.asynchronous.push(strategy, live, self._traced_step())

    def _after_sum(self, summed: Any, *_: Any) -> Any:
        """Take the vector off the summed gradients, and write it down."""
        reduction, self.tracing.appended = self.tracing.appended, None
        if reduction is None:
            return summed
        *pairs, (vector, _) = summed
        try:
            reduction.write([gradient for gradient, _ in pairs if gradient is not None], vector)
        except Exception:
            log.exception("scavenger: these steps are not measured; training goes on")
        return pairs

    def _traced_step(self) -> TracedStep:
        """Return what was planted in this graph; without a strategy nothing was."""
        planted: TracedStep | None = getattr(self.tracing, "step", None)
        if planted is not None and planted.graph is current_graph():
            return planted
        unknown = tf.constant(-1.0)
        return TracedStep(current_graph(), tf.timestamp(), tf.constant(0.0), unknown)

    def _ring(self, context: Any) -> RowRing:
        """Return the ring of this replica; rows are read of the first one of the chief."""
        place = local_place(context)
        if place not in self.rings:
            replicas = int(context.num_replicas_in_sync)
            self.rings[place] = ring = RowRing(
                RingLayout(replicas),
                self.signals,
                # Alone among several, each process has to find out that it is.
                is_read=place == 0 and (self.is_first or replicas == 1),
            )
            if place == 0:
                kind = type(context.strategy).__name__
                kind = PUBLIC_NAMES.get(kind, kind)
                self.announce(f"measured: {kind}, replicas: {replicas}")
                self.on_ring(ring)
        return self.rings[place]


class ReductionPart:
    """One replica's part of one traced reduction."""

    def __init__(self, ring: RowRing, context: Any, step: TracedStep) -> None:
        self.ring, self.step = ring, step
        self.replicas = int(context.num_replicas_in_sync)
        self.rank = tf.cast(context.replica_id_in_sync_group, tf.int32)
        self.ready_at: Any = None

    def vector(self, gradients: Sequence[Any]) -> Any:
        """Return what travels: it is summed with the gradients of the other replicas."""
        with tf.control_dependencies([values_of(each) for each in gradients]):
            self.ready_at = tf.timestamp()
        local = tf.add_n([squared_norm(each) for each in gradients])
        compute = tf.cast(self.ready_at - self.step.began_at, tf.float32)
        own = tf.one_hot(self.rank, self.replicas)
        with tf.device("/cpu:0"):
            wish = self.ring.signals.wish.read_value()
            sync = self.ring.sync_time.read_value()
        head = tf.stack([local, self.step.samples, wish])
        return tf.concat([head, own * compute, own * sync], 0)

    def write(self, gradients: Sequence[Any], vector: Any) -> None:
        """Write what was summed into the ring."""
        with tf.control_dependencies([*(values_of(each) for each in gradients), vector]):
            done_at = tf.timestamp()
        sync_time = tf.cast(done_at - self.ready_at, tf.float32)
        with tf.device("/cpu:0"):
            self.ring.note(vector, sync_time)
        if not self.ring.is_read:
            return
        mean = tf.add_n([squared_norm(each) for each in gradients])
        with tf.device("/cpu:0"):
            self.ring.write(vector, mean, done_at)


def create_at_once(create: Callable[..., Any], **options: Any) -> Any:
    """Create a variable whose first value waits for nothing.

    TensorFlow takes what computes it out of the step, which it cannot do with what it waits for.
    """
    with tf.control_dependencies(None):
        return create(**options)


def is_compiled_by_xla() -> bool:
    """Whether XLA compiles what is being traced; it knows neither clocks nor host functions."""
    return bool(control_flow_util.GraphOrParentsInXlaContext(current_graph()))


def local_place(context: Any) -> int:
    """Return the number of a replica among those of this process."""
    found = getattr(context, "_replica_id_in_sync_group", 0)
    return found if isinstance(found, int) else 0
