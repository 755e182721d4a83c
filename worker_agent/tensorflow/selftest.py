"""The self-test on TensorFlow, with its Keras; as a program, one worker of its resize."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

# TensorFlow reads these as it is imported: Keras on TensorFlow, and no notes about the processor.
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from worker_agent.frameworks import NO_FLAGS, WHOLE_BATCH, BatchSlice, StrategyContext
from worker_agent.rendezvous.rendezvous import StoreRendezvous
from worker_agent.selftest import (
    NARROW,
    SELFTEST_BATCH,
    SELFTEST_CLASSES,
    SELFTEST_FEATURES,
    WIDE,
    Indices,
    Overhead,
    ResizeResult,
    Weights,
    make_samples,
    measure_in_turns,
    resize_workers,
    train_as_worker,
)
from worker_agent.tensorflow.all_reduce import MeshAllReduce
from worker_agent.tensorflow.reducer import summarise

KERAS_OVERHEAD_BATCH = (
    480  # an iteration of about twenty milliseconds: calling Python takes half of one
)
HALVES = (BatchSlice(0.5, 1.0, is_last=False), BatchSlice(0.5, 1.0, is_last=True))


class KerasTask:
    """The training problem of the self-test.

    Args:
        width: Sets the cost of an iteration.
    """

    def __init__(self, width: int = NARROW) -> None:
        layers = tf.keras.layers
        self.inputs, self.labels = make_samples()
        self.model = tf.keras.Sequential(
            [
                tf.keras.Input((SELFTEST_FEATURES,), dtype="float64"),
                layers.Dense(width, activation="tanh", dtype="float64"),
                layers.Dense(width, activation="tanh", dtype="float64"),
                layers.Dense(SELFTEST_CLASSES, dtype="float64"),
            ]
        )
        start = np.random.default_rng(3)
        shapes = [each.shape for each in self.model.get_weights()]
        self.model.set_weights(
            [start.normal(scale=shape[0] ** -0.5, size=shape) for shape in shapes]
        )
        self.optimizer = tf.keras.optimizers.SGD(0.05, momentum=0.9)
        inputs = tf.TensorSpec([None, SELFTEST_FEATURES], tf.float64)
        labels = tf.TensorSpec([None], tf.int64)
        self.train = tf.function(self._train, input_signature=[inputs, labels])
        self.differentiate = tf.function(self._gradients, input_signature=[inputs, labels])

    def step(self, indices: Any) -> None:
        self.train(self.inputs[indices], self.labels[indices])

    def gradient(self, indices: Indices) -> Weights:
        """Return the gradient over these samples as one vector."""
        return flat(self.differentiate(self.inputs[indices], self.labels[indices]))

    def weights(self) -> Weights:
        return flat(self.model.get_weights())

    def _gradients(self, inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            scores = self.model(inputs, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
            loss = tf.reduce_mean(losses)
        return tape.gradient(loss, self.model.trainable_variables)

    def _train(self, inputs: Any, labels: Any) -> None:
        gradients = self._gradients(inputs, labels)
        pairs = zip(gradients, self.model.trainable_variables, strict=True)
        self.optimizer.apply_gradients(pairs)


def flat(arrays: Any) -> Weights:
    """Return arrays or tensors as one vector."""
    return np.concatenate([np.ravel(each) for each in arrays])


def attach(task: KerasTask) -> MeshAllReduce:
    """Return the strategy of a session of one worker that trains this task."""
    context = StrategyContext(
        name="all_reduce",
        model=task.model,
        optimizer=task.optimizer,
        worker="selftest",
        secret="",
        should_abort=lambda: False,
    )
    return MeshAllReduce(StoreRendezvous(context.worker, "127.0.0.1", lambda _: False), context)


def measure_noise_error() -> float:
    """Return the relative error of γ (Eq. 2) over halves of a batch, against their gradients."""
    task = KerasTask()
    parts = np.split(np.arange(SELFTEST_BATCH), len(HALVES))
    gradients = np.stack([task.gradient(part) for part in parts])
    direct = np.square(gradients).sum(axis=1).mean() / np.square(gradients.mean(axis=0)).sum()
    strategy = attach(task)
    for half, part in zip(HALVES, parts, strict=True):
        strategy.begin(half, NO_FLAGS)
        task.step(part)
    measured = summarise(strategy.reducer.end())
    strategy.close()
    if measured.local_norm_sq is None or measured.mean_norm_sq is None:
        return float("inf")
    return float(abs(measured.local_norm_sq / measured.mean_norm_sq / direct - 1))


def measure_overhead() -> Overhead:
    """Train two equal models in turns, one of them under the agent."""
    plain, watched = KerasTask(WIDE), KerasTask(WIDE)
    strategy = attach(watched)

    def watch(indices: Indices) -> None:
        strategy.begin(WHOLE_BATCH, NO_FLAGS)
        watched.step(indices)
        strategy.end()

    overhead = measure_in_turns(plain.step, watch, KERAS_OVERHEAD_BATCH)
    strategy.close()
    return overhead


def measure_resize() -> ResizeResult:
    """Train on one worker, on two, on one again, and compare."""
    return resize_workers(__name__, KerasTask())


if __name__ == "__main__":
    train_as_worker(KerasTask())
