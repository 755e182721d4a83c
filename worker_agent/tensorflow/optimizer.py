"""`AveragedOptimizer`: a Keras optimizer whose steps use the gradients of all workers.

``apply`` is replaced on the one optimizer that the script prepares, so everything Keras does with
gradients (clipping, weight decay, loss scales) sees the averages. The script's ``tf.function`` is
traced with these operations inside; what they do is decided on the host in each step, so a resize
traces nothing again.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import tensorflow as tf

from worker_agent.errors import UnsupportedModel, UnsupportedOptimizer
from worker_agent.tensorflow.reducer import HostReducer

log = logging.getLogger(__name__)

GRADIENT_CHUNK_BYTES = (
    4 << 20
)  # the average of one chunk travels while the gradients of the next are made
# The first trace has the first batch, the second one any batch if the function reduces retracing.
EXPECTED_TRACES = 2
RETRACE_REMEDY = (
    "scavenger: the training step was traced %d times, for a batch of another size each time, which"
    " costs seconds at every resize: write @tf.function(reduce_retracing=True)"
)
XLA_REMEDY = (
    "a step that XLA compiles cannot average its gradients with other workers: remove"
    " jit_compile=True from the function that trains"
)
FIT_REMEDY = (
    "model.fit draws its own batches, one ahead of the step: train in a loop over job.batches"
    " or leave the script as it is and start it with: scavenger agent run -- python train.py"
)
SCOPE_REMEDY = "a session averages gradients by itself: remove the strategy of tf.distribute"


class AveragedOptimizer:
    """Takes the place of the ``apply`` of one optimizer.

    Args:
        optimizer: An optimizer of Keras 3 or tf_keras.
        variables: The model's trainable variables.

    Attributes:
        layout: Numbers and type of each chunk of the gradient.

    Raises:
        UnsupportedOptimizer: It is no optimizer of Keras.
    """

    def __init__(self, optimizer: Any, variables: Sequence[Any]) -> None:
        self.optimizer = optimizer
        self.is_keras_3 = hasattr(optimizer, "apply")
        if not hasattr(optimizer, "apply_gradients") or not hasattr(optimizer, "build"):
            kind = type(optimizer)
            raise UnsupportedOptimizer(
                f"{kind.__module__}.{kind.__qualname__} is no optimizer of Keras: pass one of"
                " keras.optimizers or tf_keras.optimizers to job.prepare"
            )
        if not optimizer.built if self.is_keras_3 else not getattr(optimizer, "_built", False):
            optimizer.build(list(variables))
        # Backward makes the gradients of the last layers first.
        self.variables = [backing_variable(each) for each in variables][::-1]
        self.chunks = split_into_chunks(self.variables)
        self.layout = [
            (sum(each.shape.num_elements() for each in chunk), chunk[0].dtype.as_numpy_dtype)
            for chunk in self.chunks
        ]
        self.layout = [(size, np.dtype(kind)) for size, kind in self.layout]
        self.reducer: HostReducer | None = None
        self.traces = 0
        name = "apply" if self.is_keras_3 else "apply_gradients"
        self.step = getattr(optimizer, name)
        # Not by setattr: Keras looks into what is assigned to an optimizer.
        optimizer.__dict__[name] = self._apply if self.is_keras_3 else self._apply_gradients

    def _apply(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None
    ) -> None:
        variables = trainable_variables or self.optimizer._trainable_variables
        self._average_and_step(list(grads), list(variables), self.step)

    def _apply_gradients(self, grads_and_vars: Any, *arguments: Any, **options: Any) -> Any:
        pairs = list(grads_and_vars)

        def step(gradients: Sequence[Any], variables: Sequence[Any]) -> None:
            self.step(zip(gradients, variables, strict=True), *arguments, **options)

        self._average_and_step([grad for grad, _ in pairs], [each for _, each in pairs], step)
        return self.optimizer.iterations

    def _average_and_step(
        self, gradients: list[Any], variables: list[Any], step: Callable[[Any, Any], None]
    ) -> None:
        """Average gradients over the workers, then step unless this iteration must not count."""
        refuse_callers()
        self._count_trace()
        reducer = self.reducer
        if reducer is None:
            step(gradients, variables)
            return
        averaged, may_apply, factor = self._average(reducer, gradients, variables)

        def apply() -> Any:
            with scaled_learning_rate(self.optimizer, factor, is_keras_3=self.is_keras_3):
                step(averaged, variables)
            return tf.no_op()

        tf.cond(may_apply, apply, tf.no_op)

    def _average(
        self, reducer: HostReducer, gradients: list[Any], variables: list[Any]
    ) -> tuple[list[Any], Any, Any]:
        """Return averages, whether they may be applied, and the factor of the learning rate."""
        given = {
            backing_variable(variable).ref(): place for place, variable in enumerate(variables)
        }
        averaged = list(gradients)
        may_apply = factor = None
        for number, chunk in enumerate(self.chunks):
            places = [given.pop(each.ref(), None) for each in chunk]
            parts = [
                tf.zeros([each.shape.num_elements()], each.dtype)
                if place is None or gradients[place] is None
                else self._flat(gradients[place], each)
                for place, each in zip(places, chunk, strict=True)
            ]
            is_last = number == len(self.chunks) - 1
            outputs = tf.numpy_function(
                self._reduce_last if is_last else self._reduce_chunk,
                [number, tf.concat(parts, 0)],
                [chunk[0].dtype, tf.bool, tf.float32] if is_last else [chunk[0].dtype],
            )
            if is_last:
                outputs, may_apply, factor = outputs
                may_apply.set_shape([])
                factor.set_shape([])
            else:
                (outputs,) = outputs
            sizes = [each.shape.num_elements() for each in chunk]
            outputs.set_shape([sum(sizes)])
            pieces = tf.split(outputs, sizes)
            for place, each, piece in zip(places, chunk, pieces, strict=True):
                if place is not None and gradients[place] is not None:
                    averaged[place] = tf.reshape(piece, each.shape)
        if given:
            raise UnsupportedOptimizer(
                "the optimizer steps on variables that the model did not have when job.prepare was"
                " called: build the whole model first, and give all of it to one optimizer"
            )
        return averaged, may_apply, factor

    def _flat(self, gradient: Any, variable: Any) -> Any:
        if isinstance(gradient, tf.IndexedSlices):
            raise UnsupportedModel(
                f"the gradient of {variable.name} is sparse, and a session averages dense ones:"
                " pass tf.convert_to_tensor(gradient) to the optimizer"
            )
        return tf.reshape(tf.convert_to_tensor(gradient, variable.dtype), [-1])

    def _reduce_chunk(self, number: Any, gradient: Any) -> Any:
        assert self.reducer is not None
        return self.reducer.reduce(int(number), gradient)

    def _reduce_last(self, number: Any, gradient: Any) -> Any:
        assert self.reducer is not None
        averaged = self.reducer.reduce(int(number), gradient)
        factor = np.float32(self.reducer.learning_rate_factor)
        return averaged, np.bool_(self.reducer.may_apply), factor

    def _count_trace(self) -> None:
        if tf.executing_eagerly():
            return
        self.traces += 1
        if self.traces == EXPECTED_TRACES + 1:
            log.warning(RETRACE_REMEDY, self.traces)


def backing_variable(variable: Any) -> Any:
    """Return TensorFlow's variable behind one of Keras 3."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def split_into_chunks(variables: Sequence[Any]) -> list[list[Any]]:
    """Group variables of one type, in their order, so that a chunk is about as large as wanted."""
    chunks: list[list[Any]] = []
    size = 0
    for variable in variables:
        if not chunks or size >= GRADIENT_CHUNK_BYTES or chunks[-1][0].dtype != variable.dtype:
            chunks.append([])
            size = 0
        chunks[-1].append(variable)
        size += variable.shape.num_elements() * variable.dtype.size
    return chunks


def refuse_callers() -> None:
    """See who makes the optimizer step; costs nothing in a function that is traced already.

    Raises:
        UnsupportedModel: It is compiled by XLA, runs in Keras' fit, or in a distribution strategy.
    """
    if tf.distribute.has_strategy():
        raise UnsupportedModel(SCOPE_REMEDY)
    if not tf.executing_eagerly() and is_compiled_by_xla():
        raise UnsupportedModel(XLA_REMEDY)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        is_keras = module.startswith(("keras.src.", "tf_keras.src."))
        if is_keras and frame.f_code.co_name in ("fit", "train_on_batch"):
            raise UnsupportedModel(FIT_REMEDY)
        frame = frame.f_back


def is_compiled_by_xla() -> bool:
    """Whether the function that is being traced is compiled as a whole."""
    from tensorflow.python.ops import control_flow_util

    graph = tf.compat.v1.get_default_graph()
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


@contextmanager
def scaled_learning_rate(optimizer: Any, factor: Any, *, is_keras_3: bool) -> Iterator[None]:
    """Multiply the learning rate of the steps that are traced or made inside.

    The variable that holds the rate keeps the script's value: a callback of the script may change
    it, and a checkpoint stores it.
    """
    stepping = getattr(optimizer, "inner_optimizer", optimizer)
    if is_keras_3:
        original = stepping._get_current_learning_rate

        def scaled() -> Any:
            rate = tf.convert_to_tensor(original())
            return rate * tf.cast(factor, rate.dtype)

        stepping.__dict__["_get_current_learning_rate"] = scaled
        try:
            yield
        finally:
            del stepping.__dict__["_get_current_learning_rate"]
        return
    if isinstance(stepping._learning_rate, tf.Variable):
        rate = stepping._learning_rate
        before = tf.identity(rate)
        rate.assign(before * tf.cast(factor, before.dtype))
        yield
        rate.assign(before)
        return
    compute = stepping._compute_current_learning_rate
    unscaled = []

    def compute_scaled() -> None:
        compute()
        rate = stepping._current_learning_rate
        unscaled.append(tf.identity(rate))
        rate.assign(unscaled[0] * tf.cast(factor, rate.dtype))

    stepping.__dict__["_compute_current_learning_rate"] = compute_scaled
    try:
        yield
    finally:
        del stepping.__dict__["_compute_current_learning_rate"]
    stepping._current_learning_rate.assign(unscaled[0])
