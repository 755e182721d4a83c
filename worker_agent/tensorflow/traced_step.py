"""What hooks plant in a step that is being traced, and norms of its gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf


@dataclass(slots=True)
class TracedStep:
    """What has been planted at the beginning of the step that is being traced.

    Attributes:
        graph: The graph it stands in.
        began_at: The moment at which the step's inputs were there.
        samples: Length of the first input that has one.
        seen: Of an asynchronous step, the pushes that it read its weights after; -1 if unknown.
    """

    graph: Any
    began_at: Any
    samples: Any
    seen: Any


def squared_norm(gradient: Any) -> Any:
    """Return ||gradient||²; rows that a sparse gradient names twice are added up first."""
    if isinstance(gradient, tf.IndexedSlices):
        rows, places = tf.unique(gradient.indices)
        gradient = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    # It is fused, and makes no copy; half of the sum of squares.
    return 2.0 * tf.nn.l2_loss(tf.cast(gradient, tf.float32))


def values_of(gradient: Any) -> Any:
    """Return the tensor of a gradient, which may be sparse."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def current_graph() -> Any:
    """Return what operations are added to; the same object for all that run at once."""
    return tf.compat.v1.get_default_graph()
