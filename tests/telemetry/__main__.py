"""``python -m tests.telemetry``: a million records through all kinds of faults, stored once."""

from __future__ import annotations

import argparse
import sys

from tests.telemetry.play import Script, play

ALL = Script(
    rows=250_000,
    pace=6_000,
    agents=20,
    controllers=20,
    databases=20,
    share=0.15,
    tight=4 << 20,
    away=2.0,
)


def main() -> int:
    """Play, and print what came of it; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.telemetry")
    parser.add_argument("--seed", type=int, default=0, help="draws when which fault strikes")
    options = parser.parse_args()
    outcome = play(ALL, options.seed)
    for kind, times in sorted(outcome.faults.items()):
        print(f"{times:10,}  {kind}")
    rate = outcome.stored / outcome.seconds
    print(f"{outcome.stored:10,}  rows stored in {outcome.seconds:.0f} s, {rate:,.0f} a second")
    print(f"{outcome.dropped:10,}  rows given up and counted")
    for word in outcome.wrong:
        print(f"wrong: {word}")
    print("wrong" if outcome.wrong else "each row once, generations from their first one on")
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
