"""`PushRing`: the last pushes of asynchronous workers, in the memory of the first server.

Each step takes a number there and writes a row and a sketch of its gradient. A thread of the
coordinator reads the rows, and the products of the sketches, which the server computes: so a
reading takes few bytes, and no step waits for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from worker_agent.tensorflow.gradient_sketch import SKETCH_WIDTH
from worker_agent.tensorflow.push_rows import Push, SketchProducts, products_of
from worker_agent.tensorflow.ring import make_variable

SERVER = "/job:ps/replica:0/task:0/device:CPU:0"
PUSHES_KEPT = 4096  # so many may come between two readings
SKETCHES_KEPT = 256  # 4 MB
MOST_READ = 128  # pushes in one reading
MISSING_FOR = 256  # pushes after which one that was never written counts as lost with its worker
MOST_PUSHES = (1 << 62) - 1


class PushRing:
    """Variables on the first server.

    They are made directly, so that they belong to no strategy and to no checkpoint of the script.

    Attributes:
        read: Number of the next push.
    """

    NUMBER, SEEN, WORKER, BEGAN, COMPUTE, LOCAL, SAMPLES, ENDED = range(8)

    def __init__(self) -> None:
        with tf.init_scope(), tf.device(SERVER):
            nothing = tf.fill([PUSHES_KEPT, self.ENDED + 1], tf.constant(-1, tf.float64))
            self.pushes = make_variable(np.int64(0), "pushes")
            self.rows = make_variable(nothing, "rows")
            self.sketches = make_variable(tf.zeros([SKETCHES_KEPT, SKETCH_WIDTH]), "sketches")
        self.read = 0

    def pushes_now(self) -> Any:
        """Return the number of pushes; it stays on the server, where weights are read, too."""
        with tf.device(SERVER):
            return tf.cast(self.pushes.read_value(), tf.float64)

    def write(self, row: Any, seen: Any, sketch: Any) -> None:
        """Add the operations that push.

        Args:
            row: Its columns from WORKER to SAMPLES.
            seen: What `pushes_now` returned when the step began; -1 if that is not known.
            sketch: Of its gradient.
        """
        with tf.device(SERVER):
            row, sketch = tf.identity(row), tf.identity(sketch)
            with tf.control_dependencies([row, sketch]):
                # It counts and tells in one operation, unlike an assignment that is then read.
                number = tf.raw_ops.ResourceCountUpTo(
                    resource=self.pushes.handle, limit=MOST_PUSHES, T=tf.int64
                )
            written = scatter(self.sketches, number % SKETCHES_KEPT, sketch)
            with tf.control_dependencies([written]):
                head = tf.stack([tf.cast(number, tf.float64), tf.cast(seen, tf.float64)])
                ended_at = tf.timestamp()
                scatter(self.rows, number % PUSHES_KEPT, tf.concat([head, row, [ended_at]], 0))

    def take(self, before: int) -> tuple[list[Push], SketchProducts]:
        """Return the pushes since the last call, as far as they are written, in order.

        Args:
            before: Pushes before them whose products with them are wanted, too.
        """
        with tf.device(SERVER):
            known = int(self.pushes.read_value().numpy())
            first = max(self.read, known - PUSHES_KEPT // 2)
            places = np.arange(first, min(known, first + MOST_READ))
            rows = gather(self.rows, places % PUSHES_KEPT).numpy()
            pushes = []
            for number, row in zip(places, rows, strict=True):
                if int(row[self.NUMBER]) == number:
                    pushes.append(self._to_push(row))
                elif number > known - MISSING_FOR:
                    break  # it is being written
            if not pushes:
                return [], SketchProducts(first, np.empty((0, 0)))
            self.read = pushes[-1].number + 1
            start = max(first - before, 0)
            sketches = gather(self.sketches, np.arange(start, self.read) % SKETCHES_KEPT)
            gram = tf.matmul(sketches, sketches, transpose_b=True).numpy()
            kept_from = int(self.pushes.read_value().numpy()) - SKETCHES_KEPT
        return pushes, products_of(start, gram, kept_from)

    def _to_push(self, row: Any) -> Push:
        return Push(
            number=int(row[self.NUMBER]),
            worker=int(row[self.WORKER]),
            began_at=float(row[self.BEGAN]),
            compute_time=max(float(row[self.COMPUTE]), 0.0),
            local_norm_sq=float(row[self.LOCAL]),
            samples=int(row[self.SAMPLES]),
            seen=int(row[self.SEEN]),
            ended_at=float(row[self.ENDED]),
        )


def scatter(variable: Any, place: Any, row: Any) -> Any:
    """Return the operation that overwrites one row."""
    return tf.raw_ops.ResourceScatterUpdate(
        resource=variable.handle, indices=[place], updates=[row]
    )


def gather(variable: Any, places: Any) -> Any:
    """Return some rows."""
    return tf.raw_ops.ResourceGather(resource=variable.handle, indices=places, dtype=variable.dtype)
