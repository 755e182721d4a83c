"""``python -m tests.interruptions``: plays the matrix, and prints a line for each cell."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from queue import Queue

from tests.interruptions.cells import CELLS, KINDS, Cell, find_cell
from tests.interruptions.judge import Verdict
from tests.interruptions.play import play
from tests.interruptions.stage import open_stage
from tests.machines.metadata import Kind


def main() -> int:
    """Play the cells asked for; 1 if one is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.interruptions")
    parser.add_argument("--cell", action="append", help="play this one, e.g. train:notice:leader")
    options = parser.parse_args()
    try:
        cells = [find_cell(name) for name in options.cell] if options.cell else list(CELLS)
    except ValueError as error:
        parser.error(str(error))
    root, began = Path(tempfile.mkdtemp(prefix="scavenger-interruptions-")), time.monotonic()
    root.chmod(0o755)
    verdicts = play_all(cells, root)
    wrong = [each for each in verdicts if each.wrong]
    print(summary(verdicts, time.monotonic() - began))
    for verdict in wrong:
        print(f"to play it again: make interruptions CELL={verdict.cell}")
    if wrong or len(verdicts) < len(cells):
        print(f"logs and notes are in {root}")
    else:
        shutil.rmtree(root)
    return int(bool(wrong) or len(verdicts) < len(cells))


def play_all(cells: Sequence[Cell], root: Path) -> list[Verdict]:
    """Play the cells of each cloud one after the other, and both clouds side by side."""
    done: Queue[Verdict | Kind] = Queue()
    lanes = [kind for kind in KINDS if any(cell.kind == kind for cell in cells)]
    for kind in lanes:
        own = [cell for cell in cells if cell.kind == kind]
        threading.Thread(target=play_lane, args=(kind, own, root / kind, done)).start()
    verdicts, left = [], len(lanes)
    while left:
        told = done.get()
        if not isinstance(told, Verdict):
            left -= 1
            continue
        verdicts.append(told)
        print(line_of(told), flush=True)
    return verdicts


def play_lane(kind: Kind, cells: Sequence[Cell], root: Path, done: Queue[Verdict | Kind]) -> None:
    """Play cells in one cloud."""
    try:
        with open_stage(kind, root) as stage:
            for cell in cells:
                done.put(play(stage, cell))
    finally:
        done.put(kind)


def line_of(verdict: Verdict) -> str:
    """Return what is printed of a cell."""
    facts = [f"{verdict.seconds:.0f} s", f"{verdict.redone} iterations done again"]
    if verdict.left_after is not None:
        facts.append(f"left {verdict.left_after:.1f} s after the notice")
    if verdict.asked_after is not None:
        facts.append(f"another asked for {verdict.asked_after:.1f} s after it")
    state = "WRONG" if verdict.wrong else "ok"
    lines = [f"{verdict.cell!s:26} {verdict.cell.kind:7} {state:6} {', '.join(facts)}"]
    return "\n".join([*lines, *(f"    {sentence}" for sentence in verdict.wrong)])


def summary(verdicts: Sequence[Verdict], seconds: float) -> str:
    """Return the last line."""
    wrong = sum(bool(verdict.wrong) for verdict in verdicts)
    told = [each for each in verdicts if each.cell.has_notice]
    untold = [each for each in verdicts if not each.cell.has_notice]
    left = max((each.left_after or 0.0 for each in told), default=0.0)
    asked = max((each.asked_after or 0.0 for each in told), default=0.0)
    return (
        f"{len(verdicts)} cells in {seconds:.0f} s, {wrong} wrong; with a notice "
        f"{sum(each.redone for each in told)} iterations done again, the last worker left after "
        f"{left:.1f} s, another machine was asked for after {asked:.1f} s; without one at most "
        f"{max((each.redone for each in untold), default=0)} iterations done again"
    )


if __name__ == "__main__":
    sys.exit(main())
