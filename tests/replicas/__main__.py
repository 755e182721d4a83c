"""``python -m tests.replicas``: jobs end right under every kill, with no machine too many."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from tests.replicas.play import Script, play

ALL = Script(
    replicas=3, jobs=40, kills=12, freezes=4, span=200.0, gaps=(5.0, 40.0), rounds=6, pause=1.0
)


def main() -> int:
    """Play, and print what came of it; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.replicas", description=__doc__)
    parser.add_argument("--jobs", type=int, default=ALL.jobs)
    parser.add_argument("--kills", type=int, default=ALL.kills)
    parser.add_argument("--pace", type=float, default=1.0, help="2 takes twice as long")
    parser.add_argument("--seed", type=int, default=0, help="draws when what is killed")
    options = parser.parse_args()
    shortest, longest = ALL.gaps
    script = replace(
        ALL,
        jobs=options.jobs,
        kills=options.kills,
        span=ALL.span * options.pace,
        gaps=(shortest * options.pace, longest * options.pace),
        pause=ALL.pause * options.pace,
    )
    outcome = play(script, options.seed)
    for kind, times in sorted(outcome.faults.items()):
        print(f"{times:6,}  {kind}")
    for line, times in outcome.lines.most_common():
        print(f"{times:6,}  in the logs: {line}")
    print(f"{outcome.unheard:6,}  questions of machines that no controller answered")
    print(f"{outcome.machines:6,}  machines for {script.jobs} jobs, {outcome.seconds:.0f} s")
    for word in outcome.wrong:
        print(f"wrong: {word}")
    print("wrong" if outcome.wrong else "all jobs ended right, and no machine was launched twice")
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
