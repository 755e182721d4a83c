"""A script of compat.v1 for benchmarks that take turns: it trains by parameter servers."""

from __future__ import annotations

import json
import os
from multiprocessing.connection import Client

import numpy as np
import tensorflow.compat.v1 as tf

from tests.bench.turn import SEED, WORKERS, Turn

WIDTHS = (512, 512, 512, 10)  # 0.5 million parameters
BATCH = int(os.environ["BENCH_BATCH"]) // WORKERS


def main() -> None:
    """Serve, or train until there are no more turns."""
    cluster = tf.train.ClusterSpec(json.loads(os.environ["BENCH_CLUSTER"]))
    task, rank = os.environ["BENCH_TASK"], int(os.environ["RANK"])
    options = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=2)
    server = tf.train.Server(cluster, job_name=task, task_index=rank, config=options)
    if task == "ps":
        server.join()
    with Client(os.environ["BENCH_ADDRESS"]) as connection:
        connection.send(os.environ["BENCH_NAME"])
        train(Turn(connection), server.target, cluster, rank)


def train(turn: Turn, target: str, cluster: tf.train.ClusterSpec, rank: int) -> None:
    """Build the graph and step."""
    device = tf.train.replica_device_setter(
        worker_device=f"/job:worker/task:{rank}", cluster=cluster
    )
    with tf.device(device):
        steps = tf.train.get_or_create_global_step()
        inputs = tf.placeholder(tf.float32, [None, WIDTHS[0]])
        labels = tf.placeholder(tf.int64, [None])
        scores = inputs
        for place, width in enumerate(WIDTHS[1:]):
            initializer = tf.glorot_uniform_initializer(SEED + place)
            shape = [WIDTHS[place], width]
            kernel = tf.get_variable(f"kernel{place}", shape, initializer=initializer)
            scores = tf.matmul(tf.nn.relu(scores) if place else scores, kernel)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores)
        loss = tf.reduce_mean(losses)
        optimizer = tf.train.SyncReplicasOptimizer(
            tf.train.MomentumOptimizer(0.001, 0.9),
            replicas_to_aggregate=WORKERS,
            total_num_replicas=WORKERS,
        )
        step = optimizer.minimize(loss, global_step=steps)
    # All workers train on the same samples: their losses tell whether the clusters train alike.
    random = np.random.default_rng(SEED)
    samples = random.normal(size=(BATCH, WIDTHS[0])).astype("float32")
    classes = random.integers(0, WIDTHS[-1], BATCH)
    # With spare tokens one worker could step twice, and wait for a worker whose turn is over.
    hooks = [optimizer.make_session_run_hook(rank == 0, num_tokens=0)]
    with tf.train.MonitoredTrainingSession(target, rank == 0, hooks=hooks) as session:
        while turn.goes_on():
            turn.loss, _ = session.run([loss, step], {inputs: samples, labels: classes})
        # To close a session of the chief takes two minutes: its queue runner waits for a step.
        os._exit(0)


if __name__ == "__main__":
    os.environ.pop("TF_CONFIG", None)
    tf.disable_eager_execution()
    main()
