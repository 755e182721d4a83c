"""A script in the form of TensorFlow's first release: synchronous training with parameter servers.

Run it with ``--ps_hosts`` and so on, and ``--session monitored`` or ``supervisor``. Each worker
writes a line of JSON per step to a file of its own: the step, its gradient, and its weights. It
trains up to ``--steps``, or until there is a file ``end``.
"""

import argparse
import json
import os
import pathlib
import time

import numpy as np
import tensorflow.compat.v1 as tf

parser = argparse.ArgumentParser()
parser.add_argument("--ps_hosts", default="")
parser.add_argument("--worker_hosts", default="")
parser.add_argument("--job_name", default="worker")
parser.add_argument("--task_index", type=int, default=0)
parser.add_argument("--session", default="monitored")
parser.add_argument("--variables", default="resource")
parser.add_argument("--steps", type=int, default=1_000_000)
parser.add_argument("--pace", type=float, default=0.01)
parser.add_argument("--rate", type=float, default=0.02)
parser.add_argument("--own", default=None, help="directory for checkpoints of its own")
flags = parser.parse_args()
BATCH = int(os.environ.get("SCAVENGER_LOCAL_BATCH", "8"))

tf.disable_eager_execution()
if flags.variables == "reference":
    tf.disable_resource_variables()
cluster = tf.train.ClusterSpec(
    {"ps": flags.ps_hosts.split(","), "worker": flags.worker_hosts.split(",")}
)
server = tf.train.Server(cluster, job_name=flags.job_name, task_index=flags.task_index)
if flags.job_name == "ps":
    server.join()
workers, is_chief = cluster.num_tasks("worker"), flags.task_index == 0
device = tf.train.replica_device_setter(
    worker_device=f"/job:worker/task:{flags.task_index}", cluster=cluster
)
with tf.device(device):
    step = tf.train.get_or_create_global_step()
    inputs = tf.placeholder(tf.float32, [None, 6])
    labels = tf.placeholder(tf.int64, [None])
    seed = int(time.time()) % 1000  # no start begins where another one did
    first = tf.get_variable("first", [6, 16], initializer=tf.glorot_uniform_initializer(seed))
    offset = tf.get_variable("offset", [16], initializer=tf.zeros_initializer())
    second = tf.get_variable("second", [16, 2], initializer=tf.glorot_uniform_initializer(seed))
    scores = tf.matmul(tf.nn.relu(tf.matmul(inputs, first) + offset), second)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores)
    loss = tf.reduce_mean(losses)
    optimizer = tf.train.SyncReplicasOptimizer(
        tf.train.MomentumOptimizer(flags.rate, 0.9),
        replicas_to_aggregate=workers,
        total_num_replicas=workers,
    )
    pairs = optimizer.compute_gradients(loss)
    weights = tf.concat([tf.reshape(each.value(), [-1]) for _, each in pairs], 0)
    # Else a worker that is slow to read them could read those after its step.
    with tf.control_dependencies([weights]):
        pairs = [(tf.identity(each), variable) for each, variable in pairs]
    train = optimizer.apply_gradients(pairs, global_step=step)
gradient = tf.concat([tf.reshape(each, [-1]) for each, _ in pairs], 0)
numbers = np.random.default_rng(flags.task_index + 100 * os.getpid())


def open_session():
    if flags.session == "monitored":
        hooks = [optimizer.make_session_run_hook(is_chief)]
        return tf.train.MonitoredTrainingSession(
            server.target, is_chief, checkpoint_dir=flags.own, save_checkpoint_secs=1, hooks=hooks
        )
    tokens, runner = optimizer.get_init_tokens_op(), optimizer.get_chief_queue_runner()
    supervisor = tf.train.Supervisor(
        is_chief=is_chief,
        logdir=flags.own,
        global_step=step,
        local_init_op=optimizer.chief_init_op if is_chief else optimizer.local_step_init_op,
        ready_for_local_init_op=optimizer.ready_for_local_init_op,
        save_model_secs=1,
        recovery_wait_secs=1,
    )
    session = supervisor.prepare_or_wait_for_session(server.target)
    if is_chief:
        supervisor.start_queue_runners(session, [runner])
        session.run(tokens)
    return session


name = f"{os.environ.get('SCAVENGER_GENERATION', '0')}-{flags.task_index}-{os.getpid()}.jsonl"
with open_session() as session, open(name, "w", buffering=1) as file:
    number = int(session.run(optimizer._local_step))
    while number < flags.steps and not pathlib.Path("end").exists():
        drawn = numbers.normal(size=(BATCH, 6))
        feeds = {inputs: drawn, labels: (drawn[:, 0] > 0).astype(int)}
        following, value, before = session.run([train, gradient, weights], feeds)
        told = {"step": number, "task": flags.task_index, "gradient": value.tolist()}
        print(json.dumps({**told, "weights": before.tolist()}), file=file)
        number = int(following)
        time.sleep(flags.pace)
