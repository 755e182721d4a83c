"""Names of TensorFlow and Keras that are private to them, as the agent uses them."""

from __future__ import annotations

import inspect
from typing import Any

import keras
import pytest
import tensorflow as tf
import tf_keras
from tensorflow.python.ops import control_flow_util


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_the_rate_of_a_step_of_keras_3() -> None:
    optimizer = keras.optimizers.SGD(0.5)
    optimizer.build([keras.Variable(1.0)])
    assert parameters(optimizer._get_current_learning_rate) == []
    assert parameters(optimizer.apply) == ["grads", "trainable_variables"]
    assert len(optimizer._trainable_variables) == 1
    optimizer.__dict__["_get_current_learning_rate"] = lambda: 0.25
    assert optimizer.learning_rate == 0.25, "a step reads the rate by this name"


@pytest.mark.parametrize("is_scheduled", [False, True])
def test_the_rate_of_a_step_of_tf_keras(is_scheduled: bool) -> None:
    rate = tf_keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.5) if is_scheduled else 0.5
    optimizer = tf_keras.optimizers.SGD(rate)
    optimizer.build([tf.Variable(1.0)])
    assert optimizer._built
    assert isinstance(optimizer._learning_rate, tf.Variable) != is_scheduled
    assert hasattr(optimizer, "_current_learning_rate") == is_scheduled
    assert parameters(optimizer._compute_current_learning_rate) == []


def test_what_tells_a_function_that_xla_compiles() -> None:
    found = []

    @tf.function(jit_compile=True)
    def compiled(value: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        found.append(control_flow_util.GraphOrParentsInXlaContext(graph))
        return value

    compiled(tf.constant(1.0))
    assert parameters(control_flow_util.GraphOrParentsInXlaContext) == ["graph"]
    assert found[0] is True


def test_what_the_hooks_of_agent_run_patch() -> None:
    from keras.src.backend.tensorflow import optimizer, trainer
    from tensorflow.python.distribute import mirrored_run
    from tensorflow.python.distribute.collective_all_reduce_strategy import (
        CollectiveAllReduceStrategy,
    )
    from tensorflow.python.distribute.distribute_lib import StrategyBase
    from tf_keras.src import callbacks
    from tf_keras.src.optimizers import utils

    assert issubclass(tf.distribute.MultiWorkerMirroredStrategy, CollectiveAllReduceStrategy)
    assert parameters(mirrored_run.call_for_each_replica) == ["strategy", "fn", "args", "kwargs"]
    summing = optimizer.TFOptimizer._all_reduce_sum_gradients
    assert parameters(summing) == ["self", "grads_and_vars"]
    assert parameters(utils.all_reduce_sum_gradients) == ["grads_and_vars"]
    building = trainer.TensorFlowTrainer._maybe_symbolic_build
    assert parameters(building) == ["self", "iterator", "data_batch"]
    assert parameters(trainer.reduce_per_replica) == ["values", "strategy", "reduction"]
    for kind in (trainer.callbacks_module.CallbackList, callbacks.CallbackList):
        assert parameters(kind.on_epoch_end) == ["self", "epoch", "logs"]
    for name in ("experimental_distribute_dataset", "distribute_datasets_from_function"):
        assert parameters(getattr(StrategyBase, name))[2:] == ["options"]
    for name in ("restore", "read"):
        assert parameters(getattr(tf.train.Checkpoint, name)) == ["self", "save_path", "options"]


def test_what_tells_that_a_script_restores_its_own_checkpoint() -> None:
    from keras.src.legacy.saving import legacy_h5_format
    from keras.src.saving import saving_api, saving_lib
    from tf_keras.src.saving import saving_api as of_tf_keras

    for api in (saving_api, of_tf_keras):
        assert parameters(api.load_weights)[:2] == ["model", "filepath"]
    loading = (saving_lib.load_model, legacy_h5_format.load_model_from_hdf5, of_tf_keras.load_model)
    for function in loading:
        assert parameters(function)[0] == "filepath"


def test_what_the_hooks_of_parameter_servers_patch() -> None:
    from tensorflow.python.client.session import BaseSession
    from tensorflow.python.training import monitored_session
    from tensorflow.python.training.server_lib import Server
    from tensorflow.python.training.session_manager import SessionManager
    from tensorflow.python.training.sync_replicas_optimizer import SyncReplicasOptimizer

    applied = parameters(SyncReplicasOptimizer.apply_gradients)
    assert applied == ["self", "grads_and_vars", "global_step", "name"]
    assert parameters(SyncReplicasOptimizer.get_init_tokens_op) == ["self", "num_tokens"]
    optimizer = SyncReplicasOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0), 2)
    assert (optimizer._replicas_to_aggregate, optimizer._tokens_per_step) == (2, 2)
    assert isinstance(optimizer._opt, tf.compat.v1.train.GradientDescentOptimizer)
    # A setting of the session is the argument that the hooks replace.
    assert parameters(SessionManager.prepare_session)[8] == "config"
    assert parameters(SessionManager.wait_for_session)[:3] == ["self", "master", "config"]
    assert parameters(SessionManager.__init__)[5] == "recovery_wait_secs"
    ending = parameters(monitored_session._MonitoredSession.__init__)
    assert ending[-1] == "stop_grace_period_secs"
    assert {error.__name__ for error in monitored_session._PREEMPTION_ERRORS} == {
        "AbortedError",
        "UnavailableError",
    }
    assert parameters(BaseSession.run)[0] == parameters(BaseSession.close)[0] == "self"
    assert parameters(Server.__init__)[1] == "server_or_cluster_def"


def test_what_the_hooks_of_asynchronous_scripts_patch() -> None:
    from tensorflow.python.distribute.coordinator.cluster_coordinator import ClusterCoordinator
    from tensorflow.python.distribute.parameter_server_strategy_v2 import (
        ParameterServerStrategyV2,
        ParameterServerStrategyV2Extended,
    )
    from tensorflow.python.training.server_lib import Server

    assert tf.distribute.experimental.ParameterServerStrategy is ParameterServerStrategyV2
    assert "_num_workers" in inspect.getsource(ParameterServerStrategyV2Extended.__init__)
    assert parameters(ClusterCoordinator.schedule) == ["self", "fn", "args", "kwargs"]
    assert parameters(Server.join) == ["self"]
    handle = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name="", container="")
    tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(4, tf.int64))
    counted = tf.raw_ops.ResourceCountUpTo(resource=handle, limit=9, T=tf.int64)
    assert (int(counted), int(tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64))) == (4, 5)
