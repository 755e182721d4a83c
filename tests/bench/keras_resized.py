"""A Keras training script with a diary, resized as a job; it counts how often its step is traced.

Iterations are mostly rest, so that workers and processes that come up do not fight for the
computer's cores.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

import worker_agent
from tests.bench.diary import Diary, Iteration
from tests.bench.keras_workload import SIZE, WORKLOADS
from tests.bench.turn import SEED

BATCH = 32
REST = 0.08


def main() -> None:
    """Train as a job."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    workload = WORKLOADS[os.environ["BENCH_WORKLOAD"]]()
    worker = os.environ["SCAVENGER_WORKER"]
    traces = Path(f"{worker}.traces")
    picture = workload.pictures.shape[1:]

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, *picture], tf.float32),
            tf.TensorSpec([None], tf.int64),
        ]
    )
    def step(pictures: Any, labels: Any) -> Any:
        with traces.open("a") as file:
            file.write("traced\n")
        return workload.step(pictures, labels)

    diary = Diary(Path(f"{worker}.jsonl"))
    with worker_agent.session() as job:
        job.prepare(workload.model, workload.optimizer)
        step.get_concrete_function()  # a newcomer traces before it is asked to join
        for indices in job.batches(SIZE, BATCH, epochs=1, seed=SEED):
            began = time.monotonic()
            job.log(loss=step(*workload.batch(indices)))
            time.sleep(REST)
            diary.note(Iteration(round(BATCH / len(indices)), began, time.monotonic()))


if __name__ == "__main__":
    main()
