"""The noise that a session reports is that of the workers' gradients, computed by hand."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.crew import SAMPLES, crew
from tests.tensorflow import test_framework as frameworks
from tests.tensorflow.test_framework import INPUTS, LABELS
from worker_agent.sampler import SampleOrder, SampleRange

SEED, BATCH, ITERATIONS = 7, 12, 6


def gradient(model: Any, indices: Any) -> np.ndarray[Any, Any]:
    with tf.GradientTape() as tape:
        scores = model(tf.constant(INPUTS[indices]), training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(LABELS[indices], scores)
        loss = tf.reduce_mean(losses)
    parts = tape.gradient(loss, model.trainable_variables)
    return np.concatenate([part.numpy().ravel() for part in parts])


@pytest.mark.parametrize(
    "maker", [frameworks.TestKeras3(), frameworks.TestTfKeras()], ids=["keras", "tf_keras"]
)
# A step that waits for others holds a thread of TensorFlow, of which a process has few.
@pytest.mark.parametrize("workers", [1, 2])
def test_norms_are_those_computed_by_hand(tmp_path: Path, maker: Any, workers: int) -> None:
    lock = threading.Lock()

    def script(job: Any, note: Any) -> None:
        with lock:
            model, optimizer = maker.make()
        job.prepare(model, optimizer)
        for indices in job.batches(SAMPLES, BATCH, epochs=1, seed=SEED):
            maker.train(model, optimizer, indices)

    with crew(tmp_path, script) as made:
        made.conductor.split_every = 1
        made.order(workers, BATCH, ITERATIONS)
        made.end()
        steps = [report.steps for report in made.conductor.reports]
    measured = {
        iteration: norms
        for each in steps
        for iteration, *norms in zip(
            each.iteration, each.local_norm_sq, each.mean_norm_sq, strict=True
        )
        if norms[0] is not None
    }
    assert len(measured) >= ITERATIONS - 1
    model, optimizer = maker.make()
    order = SampleOrder(SAMPLES, SEED)
    for number in range(max(measured)):
        shares = SampleRange(number * BATCH, BATCH).split(max(workers, 2))
        parts = [gradient(model, order.indices(share)) for share in shares]
        mean = np.mean(parts, axis=0)
        if number + 1 in measured:
            local, whole = measured[number + 1]
            assert local == pytest.approx(np.mean([part @ part for part in parts]), rel=1e-5)
            assert whole == pytest.approx(mean @ mean, rel=1e-5)
        maker.train(model, optimizer, order.indices(SampleRange(number * BATCH, BATCH)))
