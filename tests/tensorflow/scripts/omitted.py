"""Train with all patches of the agent but one, in a process each, and tell what was trained.

The processes are forks of this one, which has imported the frameworks once. A line of JSON names
the patch that is left out, and tells the weights of each way of training that it belongs to.
"""

import json
import os
import socket
import tempfile

DIRECTORY = tempfile.mkdtemp()
BATCH, STEPS, FORKS = 8, 6, 2
os.environ |= {
    "SCAVENGER_ROWS": f"{DIRECTORY}/rows.jsonl",
    "SCAVENGER_WISH": f"{DIRECTORY}/wish",
    "SCAVENGER_CHECKPOINTS": f"{DIRECTORY}/checkpoints",
    "SCAVENGER_REBATCH": str(2 * BATCH),
    "SCAVENGER_TASKS": "1",
}

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
import tf_keras  # noqa: E402

from worker_agent.launcher.patch import Patch  # noqa: E402
from worker_agent.tensorflow import instrumentation  # noqa: E402

NUMBERS = np.random.default_rng(1)
INPUTS = NUMBERS.normal(size=(STEPS * 2 * BATCH, 6)).astype("float32")
LABELS = (INPUTS[:, 0] > 0).astype("int64")


def fit(library):
    """Train by ``fit`` on two replicas, from a file of weights."""
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        library.utils.set_random_seed(0)
        layers = [library.layers.Dense(8, activation="relu"), library.layers.Dense(2)]
        model = library.Sequential([library.layers.InputLayer((6,)), *layers])
        loss = library.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(loss=loss, optimizer=library.optimizers.Adam(0.01))
    dataset = tf.data.Dataset.from_tensor_slices((INPUTS, LABELS)).batch(2 * BATCH)
    path = f"{DIRECTORY}/{os.getpid()}.weights.h5"
    model.save_weights(path)
    model.load_weights(path)
    tf.train.Checkpoint(model=model).restore(None)
    model.fit(dataset, epochs=2, verbose=0)
    return model.get_weights()


def train_with_servers():
    """Train with SyncReplicasOptimizer; this process is the server, too."""
    v1 = tf.compat.v1
    v1.disable_eager_execution()
    places = []
    for _ in range(2):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            places.append(f"127.0.0.1:{taken.getsockname()[1]}")
    cluster = tf.train.ClusterSpec({"ps": places[:1], "worker": places[1:]})
    servers = [v1.train.Server(cluster, job_name=name, task_index=0) for name in cluster.jobs]
    with v1.device(v1.train.replica_device_setter(cluster=cluster)):
        step = v1.train.get_or_create_global_step()
        first = v1.get_variable("first", initializer=tf.constant(0.1, shape=[6, 2]))
        inputs, labels = v1.placeholder(tf.float32, [None, 6]), v1.placeholder(tf.int64, [None])
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.matmul(inputs, first))
        optimizer = v1.train.SyncReplicasOptimizer(v1.train.AdagradOptimizer(0.1), 1)
        train = optimizer.minimize(tf.reduce_mean(losses), global_step=step)
    hooks = [optimizer.make_session_run_hook(True, num_tokens=0)]
    target = servers[cluster.jobs.index("worker")].target
    with v1.train.MonitoredTrainingSession(
        target, True, hooks=hooks, stop_grace_period_secs=1
    ) as session:
        for place in range(STEPS):
            part = slice(BATCH * place, BATCH * (place + 1))
            session.run(train, {inputs: INPUTS[part], labels: LABELS[part]})
        return [session.run(first)]


def is_of_servers(patch):
    module = getattr(patch.owner, "__module__", "")
    return module.startswith(("tensorflow.python.training.", "tensorflow.python.client."))


def install(names, omitted):
    """Install patches but that of a name; returns the names of all, those of servers apart."""
    found = {True: [], False: []}
    apply = Patch.apply

    def apply_unless_omitted(patch):
        name = f"{patch.owner.__name__}.{patch.name}"
        found[is_of_servers(patch)].append(name)
        if name != omitted:
            apply(patch)

    Patch.apply = apply_unless_omitted
    for name in names:
        getattr(instrumentation, name)()
    return found


def fork(work):
    """Start a fork of this process; returns it, and where what the function returns is read."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        with os.fdopen(writing, "w") as file:
            json.dump(work(), file)
        os._exit(0)
    os.close(writing)
    return child, reading


def join(child, reading):
    """Return what a fork has returned."""
    with os.fdopen(reading) as file:
        told = file.read()
    os.waitpid(child, 0)
    return json.loads(told)


def trained(train, names, omitted):
    if omitted is not None:
        install(names, omitted)
    return [weights.tobytes().hex() for weights in train()]


KERAS = ["install_steps", "install_keras", "install_keras_fit"]
TF_KERAS = ["install_tf_keras", "install_tf_keras_fit", "install_tf_keras_saving"]
WAYS = {
    "keras": (lambda: fit(keras), KERAS, False),
    "tf_keras": (lambda: fit(tf_keras), TF_KERAS, False),
    "servers": (train_with_servers, ["install_steps"], True),
}
started = []
for way, (train, names, with_servers) in WAYS.items():
    patches = join(*fork(lambda names=names: list(install(names, "").items())))
    for omitted in [None, "", *dict(patches)[with_servers]]:
        if len(started) == FORKS:
            told, place = started.pop(0)
            print(json.dumps({**told, "weights": join(*place)}), flush=True)
        place = fork(lambda o=omitted, t=train, n=names: trained(t, n, o))
        started.append(({"way": way, "omitted": omitted}, place))
for told, place in started:
    print(json.dumps({**told, "weights": join(*place)}), flush=True)
