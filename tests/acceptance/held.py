"""The digits example, whose accuracy stays below its goal until the file named in HELD is gone.

Run in the example's directory. However busy the computer is, training then ends after the search.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, os.getcwd())

import train

HELD = Path(os.environ["HELD"])
evaluate = train.evaluate


def held(*arguments: object) -> float:
    """Return nine tenths of the accuracy, which never reach the goal, until it is released."""
    accuracy: float = evaluate(*arguments)
    return 0.9 * accuracy if HELD.exists() else accuracy


if __name__ == "__main__":
    train.evaluate = held
    train.main()
