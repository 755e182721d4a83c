"""The network of chaos in Keras, on TensorFlow."""

from __future__ import annotations

from typing import Any

import httpx
import keras
import numpy as np
import tensorflow as tf

from tests.chaos.networks import HALF_LIFE, RATE, SAMPLES, SEED
from worker_agent.tensorflow.framework import TENSORFLOW  # before the fork
from worker_agent.tensorflow.state import KerasState

layers = keras.layers


class KerasNetwork:
    """Implements `tests.chaos.networks.Network`."""

    def __init__(self, dropout: float) -> None:
        keras.config.set_floatx("float64")
        random = np.random.default_rng(5)
        self.inputs = random.normal(size=(SAMPLES, 6))
        self.labels = random.integers(0, 3, SAMPLES)
        self.model = keras.Sequential(
            [
                keras.Input((6,)),
                layers.Dense(16, "tanh"),
                layers.Dropout(dropout, seed=1),
                layers.Dense(3),
            ]
        )
        start = np.random.default_rng(3)
        weights = [start.normal(size=each.shape) for each in self.model.get_weights()]
        self.model.set_weights(weights)
        schedule = keras.optimizers.schedules.ExponentialDecay(RATE, HALF_LIFE, 0.5)
        self.optimizer = keras.optimizers.AdamW(schedule)
        self.optimizer.build(self.model.trainable_variables)
        self.state = KerasState(self.model, self.optimizer)
        self.gradients: list[Any] = []
        self.pass_ = tf.function(self._pass, reduce_retracing=True)
        self.apply = tf.function(self._apply)

    @staticmethod
    def warm_up() -> None:
        httpx.Client(trust_env=False).close()

    def prepare(self, job: Any) -> None:
        assert TENSORFLOW.owns(self.model)
        job.prepare(self.model, self.optimizer)

    def seed(self, start: int) -> None:
        self.state.reseed(SEED, start)

    def add(self, indices: Any, weight: float) -> None:
        gradients = self.pass_(tf.constant(self.inputs[indices]), tf.constant(self.labels[indices]))
        weighted = [weight * each for each in gradients]
        if self.gradients:
            weighted = [one + other for one, other in zip(self.gradients, weighted, strict=True)]
        self.gradients = weighted

    def pass_batch(self, job: Any, indices: Any) -> None:
        self.add(indices, 1.0)

    def step(self) -> None:
        self.apply(self.gradients)
        self.gradients = []

    def weights(self) -> list[float]:
        variables = [each.numpy().ravel() for each in self.model.trainable_variables]
        return [float(each) for each in np.concatenate(variables)]

    def _pass(self, inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            scores = self.model(inputs, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
            loss = tf.reduce_mean(losses)
        return tape.gradient(loss, self.model.trainable_variables)

    def _apply(self, gradients: Any) -> None:
        self.optimizer.apply(gradients, self.model.trainable_variables)
