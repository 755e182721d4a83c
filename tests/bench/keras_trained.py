"""A Keras training script for benchmarks that take turns: in a session, or by TensorFlow's own.

BENCH_WAY says which: ``session`` (three lines of ours) or ``plain``, the same step under
``MultiWorkerMirroredStrategy``. Both train on the same samples in the same order.
"""

from __future__ import annotations

import json
import os
from multiprocessing.connection import Client

import tensorflow as tf

import worker_agent
from tests.bench.keras_workload import SIZE, WORKLOADS
from tests.bench.turn import SEED, WORKERS, Turn
from worker_agent.sampler import SampleOrder, SampleRange

BATCH = int(os.environ["BENCH_BATCH"])


def main() -> None:
    """Train until there are no more turns."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    way = os.environ["BENCH_WAY"]
    with Client(os.environ["BENCH_ADDRESS"]) as connection:
        connection.send(os.environ["BENCH_NAME"])
        if way == "session":
            train_as_job(Turn(connection))
        else:
            train_with_strategy(Turn(connection))


def train_as_job(turn: Turn) -> None:
    """Train as a job: measured, reported, ready to be resized."""
    workload = WORKLOADS[os.environ["BENCH_WORKLOAD"]]()
    step = tf.function(workload.step, reduce_retracing=True)
    with worker_agent.session() as job:
        job.prepare(workload.model, workload.optimizer)
        for indices in job.batches(SIZE, BATCH, epochs=1, seed=SEED):
            if not turn.goes_on():
                return
            loss = step(*workload.batch(indices))
            job.log(loss=loss)
            turn.loss = loss


def train_with_strategy(turn: Turn) -> None:
    """Train with MultiWorkerMirroredStrategy, which neither measures nor reports."""
    rank = int(os.environ["RANK"])
    cluster = json.loads(os.environ["BENCH_CLUSTER"])
    task = {"type": "worker", "index": rank}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        workload = WORKLOADS[os.environ["BENCH_WORKLOAD"]]()

    @tf.function(reduce_retracing=True)
    def step(pictures: object, labels: object) -> object:
        return strategy.run(workload.step, args=(pictures, labels, 1 / WORKERS))

    order, position = SampleOrder(SIZE, SEED), 0
    while turn.goes_on():
        mine = SampleRange(position, BATCH).split(WORKERS)[rank]
        turn.loss = step(*workload.batch(order.indices(mine)))
        position += BATCH


if __name__ == "__main__":
    main()
