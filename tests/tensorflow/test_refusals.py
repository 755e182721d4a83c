"""What a session of TensorFlow refuses says what to do instead, and trains no wrong weight."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from worker_agent.errors import AgentError, UnsupportedModel, UnsupportedOptimizer
from worker_agent.frameworks import BatchSlice, ControlFlags, StrategyContext
from worker_agent.rendezvous.rendezvous import StoreRendezvous
from worker_agent.tensorflow.all_reduce import MeshAllReduce

WHOLE = BatchSlice(1.0, 1.0, is_last=True)
FLAGS = ControlFlags(1, is_over=False, is_leaving=False, learning_rate_factor=1.0)
INPUTS, LABELS = np.ones((8, 4), "float32"), np.arange(8) % 3
layers = keras.layers


def classifier() -> Any:
    return keras.Sequential([keras.Input((4,)), layers.Dense(3)])


@contextmanager
def prepared(model: Any, optimizer: Any, **changes: Any) -> Iterator[MeshAllReduce]:
    rendezvous = StoreRendezvous("w0", "127.0.0.1", lambda _: False)
    facts = {"name": "all_reduce", "worker": "w0", "secret": "between us", **changes}
    context = StrategyContext(model=model, optimizer=optimizer, should_abort=lambda: False, **facts)
    try:
        strategy = MeshAllReduce(rendezvous, context)
    except AgentError:
        rendezvous.close()
        raise
    yield strategy
    strategy.close()


def make_step(model: Any, optimizer: Any, **options: Any) -> Callable[..., Any]:
    @tf.function(**options)
    def step(inputs: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            scores = model(inputs, training=True)
            loss = tf.reduce_mean(
                keras.losses.sparse_categorical_crossentropy(labels, scores, from_logits=True)
            )
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    return lambda size=8: step(tf.constant(INPUTS[:size]), tf.constant(LABELS[:size]))


def test_a_model_without_weights_must_be_built_first() -> None:
    model = keras.Sequential([layers.Dense(3)])
    with pytest.raises(UnsupportedModel, match="call it once on a batch"), prepared(model, None):
        pass


@pytest.mark.parametrize("optimizer", [None, [keras.optimizers.SGD()], tf.Module()])
def test_what_is_no_optimizer_is_named(optimizer: Any) -> None:
    with (
        pytest.raises(UnsupportedOptimizer, match="is no optimizer of Keras"),
        prepared(classifier(), optimizer),
    ):
        pass


def test_a_step_that_is_compiled_is_refused_before_it_runs() -> None:
    model, optimizer = classifier(), keras.optimizers.SGD()
    with (
        prepared(model, optimizer),
        pytest.raises(UnsupportedModel, match="remove jit_compile=True"),
    ):
        make_step(model, optimizer, jit_compile=True)()


def test_fit_is_refused_with_what_to_run_instead() -> None:
    model, optimizer = classifier(), keras.optimizers.SGD()
    model.compile(optimizer, "sparse_categorical_crossentropy")
    with prepared(model, optimizer), pytest.raises(UnsupportedModel, match="scavenger agent run"):
        model.fit(INPUTS, LABELS, verbose=0)


def test_a_strategy_of_tensorflow_is_refused() -> None:
    model, optimizer = classifier(), keras.optimizers.SGD()
    with (
        prepared(model, optimizer),
        tf.distribute.MirroredStrategy(["CPU:0"]).scope(),
        pytest.raises(UnsupportedModel, match=r"remove the strategy of tf\.distribute"),
    ):
        make_step(model, optimizer)()


def test_a_sparse_gradient_is_refused_by_the_name_of_its_variable() -> None:
    model = keras.Sequential([keras.Input((4,)), layers.Embedding(9, 2), layers.Flatten()])
    optimizer = keras.optimizers.SGD()
    with (
        prepared(model, optimizer),
        pytest.raises(UnsupportedModel, match=r"embedding.* is sparse.*tf.convert_to_tensor"),
    ):
        make_step(model, optimizer)()


def test_variables_that_the_model_did_not_have_are_refused() -> None:
    model, optimizer = classifier(), keras.optimizers.SGD()
    optimizer.build([*model.trainable_variables, extra := keras.Variable(np.ones(2))])
    with (
        prepared(model, optimizer),
        pytest.raises(UnsupportedOptimizer, match="build the whole model first"),
    ):
        optimizer.apply([tf.ones(2)], [extra])


def test_a_second_step_on_one_batch_is_refused_and_changes_nothing() -> None:
    model, optimizer = classifier(), keras.optimizers.SGD()
    with prepared(model, optimizer) as strategy:
        strategy.begin(WHOLE, FLAGS)
        step = make_step(model, optimizer)
        step()
        before = model.get_weights()
        step()
        np.testing.assert_array_equal(before[0], model.get_weights()[0])
        with pytest.raises(UnsupportedOptimizer, match="stepped twice on one batch"):
            strategy.end()


@pytest.mark.parametrize(("options", "warnings"), [({}, 1), ({"reduce_retracing": True}, 0)])
def test_a_step_that_is_traced_for_each_batch_is_named_once(
    caplog: pytest.LogCaptureFixture, options: dict[str, bool], warnings: int
) -> None:
    model, optimizer = classifier(), keras.optimizers.SGD()
    with prepared(model, optimizer) as strategy, caplog.at_level(logging.WARNING):
        step = make_step(model, optimizer, **options)
        for size in (8, 7, 6, 5, 4):
            strategy.begin(WHOLE, FLAGS)
            step(size)
            assert strategy.end()
    said = [line for line in caplog.messages if line.startswith("scavenger: the training step")]
    assert len(said) == warnings


def test_outside_a_batch_a_step_is_the_scripts_own() -> None:
    model, optimizer = classifier(), keras.optimizers.SGD()
    before = model.get_weights()[0]
    with prepared(model, optimizer):
        make_step(model, optimizer)()
    assert abs(before - model.get_weights()[0]).max() > 0
