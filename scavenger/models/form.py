"""Form: the shape of a law of iteration time, before its coefficients are fitted."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Literal, get_args

from scavenger.models.parallel import Growth

Topology = Literal["all_reduce", "parameter_server"]
Begins = Literal["workers", "machines"]


@dataclass(frozen=True, slots=True)
class Form:
    """The shape of a law, before its coefficients are fitted.

    Attributes:
        growth: How synchronisation grows with the workers.
        overlap: q, how much of it hides behind compute.
        flatness: r, how abruptly small batches stop saving time.
        begins: Whether what does not grow begins with the second worker or the second machine,
            where measurements cannot tell the two.
        growing: Share of synchronisation that grows, where one worker count above 1 was measured.
    """

    growth: Growth = "linear"
    overlap: float = 1.0
    flatness: float = 1.0
    begins: Begins = "workers"
    growing: float = 0.5


LINES = Form()
# Parameter servers serve one worker after the other (Eq. 10); all-reduce hides part of it.
USUAL: dict[Topology, Form] = {
    "parameter_server": Form(growth="servers"),
    "all_reduce": Form(overlap=2.0),
}
GROWTHS: dict[Topology, tuple[Growth, ...]] = {
    "parameter_server": ("servers",),
    "all_reduce": ("linear", "log"),
}
FORMS = tuple(
    Form(growth, overlap, flatness)
    for growth, overlap, flatness in product(get_args(Growth), (1.0, 2.0, 4.0), (1.0, 2.0))
)
