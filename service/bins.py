"""Bins: a histogram that takes thousands of values at once; Prometheus' own takes one at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector


class Bins(Collector):
    """Counts values by a label and by the first bound that they do not exceed.

    Args:
        name: Of the metric.
        help_text: What it says.
        label: Name of its label.
        bounds: Ascending; whatever exceeds the last is counted above it.
    """

    def __init__(self, name: str, help_text: str, label: str, bounds: tuple[float, ...]) -> None:
        self.name, self.help_text, self.label = name, help_text, label
        self.bounds = np.array(bounds)
        self._counts: dict[str, NDArray[np.int64]] = {}
        self._sums: dict[str, float] = {}
        self._turn = threading.Lock()

    def observe(self, values: Mapping[str, NDArray[np.float64]]) -> None:
        """Count values, by the label's value; those that are not finite are left out."""
        for word, column in values.items():
            finite = column[np.isfinite(column)]
            places = np.searchsorted(self.bounds, finite)
            counts = np.bincount(places, minlength=len(self.bounds) + 1)
            with self._turn:
                self._counts[word] = self._counts.get(word, np.int64(0)) + counts
                self._sums[word] = self._sums.get(word, 0.0) + float(finite.sum())

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """Yield what was counted."""
        family = HistogramMetricFamily(self.name, self.help_text, labels=[self.label])
        names = [*map(str, self.bounds.tolist()), "+Inf"]
        with self._turn:
            for word, counts in self._counts.items():
                buckets = list(zip(names, np.cumsum(counts).tolist(), strict=True))
                family.add_metric([word], buckets, self._sums[word])
        yield family
