"""Draws the paper's figures and writes the table of ``docs/reproduction.md``: ``make paper``.

Training for real is slow, so it is done once and its summary kept; ``make paper FRESH=1`` does it
again.
"""

from __future__ import annotations

import argparse

from tests.paper import page, runs, training
from tests.paper.evidence import gather
from tests.paper.figures import draw_all
from tests.paper.workload import WORKLOADS


def main() -> None:
    """Train if asked to, then draw and write."""
    parser = argparse.ArgumentParser(prog="make paper", description=__doc__)
    parser.add_argument(
        "--fresh", action="store_true", help="train again; a quarter of an hour of one core"
    )
    if parser.parse_args().fresh:
        runs.save({w.setting.name: training.run_all(w) for w in WORKLOADS})
    evidences = gather(runs.load())
    draw_all(evidences, page.PICTURES)
    page.write_table(evidences)
    print(f"wrote {page.PAGE} and {page.PICTURES}")


if __name__ == "__main__":
    main()
