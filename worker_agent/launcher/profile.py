"""``scavenger agent profile``: times the blocks of a script's model, for its layouts."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from scavenger.measurement.layout_profile import LAYOUT_PROFILE, LinkSpeed
from worker_agent.launcher.inspection import inspect, own_command

GIGABIT = 1e9 / 8
NOT_STEPPED = (
    "before a model of PyTorch had been called twice and stepped, so nothing was profiled. Let it "
    "train for at least 2 steps."
)


def profile(arguments: Sequence[str]) -> NoReturn:
    """Run a training command for a few steps and write what layouts of its model follow from."""
    options = _parser().parse_args(arguments)
    command = own_command(options.command)
    if not command:
        _parser().error("the training command is missing")
    link = LinkSpeed(options.latency_ms / 1e3, options.gigabits * GIGABIT)
    with tempfile.TemporaryDirectory(prefix="scavenger-profile-") as directory:
        report = Path(directory) / "profile.json"
        inspect(command, {"SCAVENGER_PROFILE": str(report)}, report, NOT_STEPPED, options.patience)
        found = LAYOUT_PROFILE.validate_json(report.read_bytes())
    found = replace(found, across=link)
    try:
        options.out.write_bytes(LAYOUT_PROFILE.dump_json(found, indent=2, exclude_defaults=True))
    except OSError as error:
        print(f"cannot write {options.out}: {error.strerror}", file=sys.stderr)
        sys.exit(1)
    seconds = sum(block.fixed_seconds for block in found.blocks)
    added = sum(block.seconds_per_sample for block in found.blocks)
    size = sum(block.weight_bytes for block in found.blocks) / 2**20
    if options.quiet:
        sys.exit(0)
    print(
        f"{options.out}: {len(found.blocks)} blocks, {size:.4g} MiB of weights, "
        f"{1e3 * seconds:.3g} ms and {1e3 * added:.3g} ms for each sample"
    )
    print(f"Next: scavenger plan {options.out} --layouts --processes 1,2,4,8 --batch 64")
    sys.exit(0)


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} must be above 0")
    return value


def _parser() -> argparse.ArgumentParser:
    """Return the parser; all that follows ``--`` belongs to the command."""
    parser = argparse.ArgumentParser(
        prog="scavenger agent profile",
        usage="%(prog)s [OPTIONS] -- COMMAND...",
        allow_abbrev=False,
        description="Run a training script of PyTorch until its first steps, and time each block of"
        " the model that it calls first, with its batch and an eighth of it. The script ends then.",
        epilog="Example: scavenger agent profile --out profile.json -- python train.py",
    )
    parser.add_argument("--out", type=Path, default=Path("profile.json"), help="File to write.")
    parser.add_argument(
        "--gigabits", type=_positive, default=10.0, help="Bandwidth between machines, per second."
    )
    parser.add_argument(
        "--latency-ms", type=_positive, default=0.1, help="Latency between machines."
    )
    parser.add_argument(
        "--patience", type=_positive, help="Seconds after which the command is killed."
    )
    parser.add_argument("--quiet", action="store_true", help="Print nothing of the profile.")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help="The training command and its arguments."
    )
    return parser
