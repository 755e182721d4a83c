"""The small network that chaos trains, in each framework, in float64."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any, Protocol

SAMPLES = 240
SEED = 9
RATE = 0.01  # at the beginning
HALF_LIFE = 200  # iterations in which the schedule halves the learning rate
NETWORKS = {
    "pytorch": "tests.chaos.torch_network:TorchNetwork",
    "tensorflow": "tests.chaos.keras_network:KerasNetwork",
}


class Network(Protocol):
    """One process's network, its optimizer with much state, and a schedule of its learning rate."""

    def __init__(self, dropout: float) -> None: ...

    @staticmethod
    def warm_up() -> None:
        """Import everything that is imported late, and start no thread."""

    def prepare(self, job: Any) -> None:
        """Let a session train it."""

    def seed(self, start: int) -> None:
        """Set the random streams as a session does before the pass that begins at a sample."""

    def add(self, indices: Any, weight: float) -> None:
        """Make a forward and a backward pass, and add its gradient with this weight."""

    def pass_batch(self, job: Any, indices: Any) -> None:
        """Make the passes of a batch, as a script does."""

    def step(self) -> None:
        """Step by the gradients that were added since the last step."""

    def weights(self) -> list[float]:
        """Return all weights as one list."""


def find_network(framework: str) -> type[Network]:
    """Return the network of a framework; imports the framework."""
    found: type[Network] = resolve_name(NETWORKS[framework])
    return found
