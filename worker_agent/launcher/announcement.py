"""`Announcement`: the one line by which a script learns what of it is measured."""

from __future__ import annotations

import sys


class Announcement:
    """Says once what is measured, or why nothing is; the first rank speaks for all.

    Args:
        rank: Rank of this process.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.is_made = False

    def __call__(self, text: str) -> None:
        """Print the text, unless there was one before."""
        if not self.is_made and self.rank == 0:
            print(f"scavenger: {text}", file=sys.stderr, flush=True)
        self.is_made = True
