"""The cells of the matrix: when machines are taken back, whether they are told, and which."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from tests.machines.metadata import Kind

MOMENTS = ("launch", "boot", "join", "train", "resize", "checkpoint", "drain")
WARNINGS = ("notice", "none")
VICTIMS = ("leader", "other", "all")
KINDS: tuple[Kind, Kind] = ("aws", "google")


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell.

    Attributes:
        moment: What happens in the job when machines are taken back.
        warning: Whether they are told before.
        victims: Which of its two machines.
        kind: Whose cloud it is.
    """

    moment: str
    warning: str
    victims: str
    kind: Kind

    def __str__(self) -> str:
        return f"{self.moment}:{self.warning}:{self.victims}"

    @property
    def has_notice(self) -> bool:
        return self.warning == "notice"


# Neighbours are in different clouds, so that each cloud sees each moment, warning and victim.
CELLS = tuple(
    Cell(*names, KINDS[number % 2])
    for number, names in enumerate(product(MOMENTS, WARNINGS, VICTIMS))
)


def find_cell(name: str) -> Cell:
    """Return the cell of a name; raises ValueError that says what a name looks like."""
    for cell in CELLS:
        if str(cell) == name:
            return cell
    parts = " : ".join("{" + ", ".join(part) + "}" for part in (MOMENTS, WARNINGS, VICTIMS))
    raise ValueError(f"there is no cell {name!r}: a name is {parts}, such as train:notice:leader")
