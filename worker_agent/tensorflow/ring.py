"""`RowRing`: rows that training steps write on the device's side and a thread reads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from worker_agent.launcher.step_records import MeasuredStep

ROWS = 2048  # so many steps may pass between two looks at them


@dataclass(frozen=True, slots=True)
class RingLayout:
    """Columns of a row.

    The step's number, ||sum||², when it ended, and then the sum of what travelled: Σ||g_k||²,
    samples, the chief's wish, and for each replica its compute time and the time that
    synchronisation took it in the step before.

    Attributes:
        replicas: Replicas that sum their gradients.
    """

    replicas: int

    NUMBER, MEAN, ENDED, LOCAL, SAMPLES, WISH, TIMES = range(7)

    @property
    def columns(self) -> int:
        return self.TIMES + 2 * self.replicas

    def compute_times(self, row: npt.NDArray[np.float64]) -> list[float]:
        """Return the seconds that each replica computed."""
        return list(map(float, row[self.TIMES : self.TIMES + self.replicas]))

    def previous_sync_times(self, row: npt.NDArray[np.float64]) -> list[float]:
        """Return the seconds that each replica waited in the step before."""
        return list(map(float, row[self.TIMES + self.replicas :]))


class StepSignals:
    """What is asked of this process between two of its steps, in the memory of the host.

    Args:
        is_gate_set: Whether something is to be done before the first step.

    Attributes:
        wish: What the chief wants of all: more than 0 to stop after the step.
        agreed: What all replicas have learnt of that, the same on each after the same step.
        gate: More than 0 where something is to be done before the next step.
    """

    def __init__(self, *, is_gate_set: bool) -> None:
        # A value that is assigned later would be assigned in each step of the function in which
        # this is made, and never where TensorFlow traces that function again.
        with tf.init_scope(), tf.device("/cpu:0"):
            self.wish = make_variable(np.float32(0), "wish")
            self.agreed = make_variable(np.float32(0), "agreed")
            self.gate = make_variable(np.float32(is_gate_set), "gate")

    def agree(self, wish: Any) -> None:
        """Add the operations that take note of what was summed."""
        self.agreed.assign(wish)
        self.gate.assign_add(wish)


class RowRing:
    """The last steps of one replica, in the memory of the host.

    Its variables are made directly, so that they belong to no strategy and to no checkpoint of the
    script.

    Attributes:
        sync_time: Seconds that synchronisation took this replica in the last step.
        read: Number of the last step that was read, from 1.
        samples: Samples of the steps that were read.
        is_read: Whether rows are written at all: those of one process are read.
    """

    def __init__(self, layout: RingLayout, signals: StepSignals, *, is_read: bool) -> None:
        self.layout, self.signals, self.is_read = layout, signals, is_read
        with tf.init_scope(), tf.device("/cpu:0"):
            self.rows = make_variable(np.zeros((ROWS, layout.columns)), "rows")
            self.steps = make_variable(np.int64(0), "steps")
            self.sync_time = make_variable(np.float32(0), "sync_time")
        self.read = self.samples = 0
        self.held: npt.NDArray[np.float64] | None = None
        self.ended_at: float | None = None

    def note(self, vector: Any, sync_time: Any) -> None:
        """Add the operations that keep what the next step needs."""
        self.sync_time.assign(sync_time)
        self.signals.agree(vector[self.layout.WISH - self.layout.LOCAL])

    def write(self, vector: Any, mean: Any, ended_at: Any) -> None:
        """Add the operations that write a row."""
        number = self.steps.assign_add(1)
        head = tf.stack([tf.cast(number, tf.float64), tf.cast(mean, tf.float64), ended_at])
        row = tf.concat([head, tf.cast(vector, tf.float64)], 0)
        self.rows.scatter_nd_update([[number % ROWS]], [row])

    def take(self, *, is_last: bool = False) -> Iterator[MeasuredStep]:
        """Yield the steps since the last call; the newest one only once the next has told of it.

        Args:
            is_last: Whether no step follows.
        """
        rows = self.rows.numpy()
        fresh = rows[rows[:, self.layout.NUMBER] > self.read]
        for row in fresh[np.argsort(fresh[:, self.layout.NUMBER])]:
            self.read = int(row[self.layout.NUMBER])
            self.samples += int(row[self.layout.SAMPLES])
            if self.held is not None:
                yield self._complete(self.held, min(self.layout.previous_sync_times(row)))
            self.held = row
        if is_last and self.held is not None:
            yield self._complete(self.held, float(self.sync_time.numpy()))
            self.held = None

    def _complete(self, row: npt.NDArray[np.float64], sync_time: float) -> MeasuredStep:
        layout, replicas = self.layout, self.layout.replicas
        compute_times = layout.compute_times(row)
        ended_at = float(row[layout.ENDED])
        usual = max(compute_times) + sync_time
        step_time = usual if self.ended_at is None else ended_at - self.ended_at
        self.ended_at = ended_at
        # Each replica has scaled its loss by 1/K, as every loop of tf.distribute does, or none has.
        local, mean = float(row[layout.LOCAL]) * replicas, float(row[layout.MEAN])
        is_known = replicas > 1 and math.isfinite(local + mean)
        return MeasuredStep(
            iteration=int(row[layout.NUMBER]),
            samples=int(row[layout.SAMPLES]),
            shards=replicas,
            local_norm_sq=local if is_known else None,
            mean_norm_sq=mean if is_known else None,
            compute_time=max(compute_times),
            sync_time=sync_time,
            step_time=step_time,
            mean_compute_time=sum(compute_times) / replicas,
            fastest_compute_time=min(compute_times),
        )


def make_variable(value: Any, name: str) -> Any:
    """Return a variable of the host that no strategy and no checkpoint knows."""
    return ResourceVariable(value, trainable=False, name=f"scavenger/{name}")
