"""``scavenger agent audit``: names the lines of a script that read a device value in every step."""

from __future__ import annotations

import argparse
import json
import linecache
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from worker_agent.launcher.inspection import inspect, own_command

EXIT_READS = 1
TOO_FEW_STEPS = (
    "before an optimizer of PyTorch had made 5 steps, so nothing was audited. Let it train for at "
    "least 5 steps."
)
READ_REMEDY = (
    "Keep such a value on the device (torch.where, torch.isfinite), or pass the tensor to job.log,"
    " which reads it once it has arrived."
)
SCALER_REMEDY = (
    "Give SGD, Adam, AdamW or Adagrad fused=True: it then learns on the device whether to step."
)


def audit(arguments: Sequence[str]) -> NoReturn:
    """Run a training command for a few steps and print what makes the host wait in each of them."""
    command = _parse(arguments)
    with tempfile.TemporaryDirectory(prefix="scavenger-audit-") as directory:
        report = Path(directory) / "lines.json"
        inspect(command, {"SCAVENGER_AUDIT": str(report)}, report, TOO_FEW_STEPS)
        lines = json.loads(report.read_text())
    for text in describe(lines):
        print(text)
    sys.exit(EXIT_READS if lines else 0)


def describe(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what to print for the lines that were found."""
    for line in lines:
        place = f"{shorten(line['file'])}:{line['line']}"
        source = linecache.getline(line["file"], line["line"]).strip()
        reader = "lets a GradScaler read" if line["is_scaler"] else "reads"
        yield f"{place} {reader} a device value in every step: {source}"
    if not lines:
        yield "No line of the script reads a device value in every step."
        return
    yield "The host waits there until the device has done all that was queued."
    if any(not line["is_scaler"] for line in lines):
        yield READ_REMEDY
    if any(line["is_scaler"] for line in lines):
        yield SCALER_REMEDY


def shorten(file: str) -> str:
    """Return a path below the working directory without it."""
    relative = os.path.relpath(file)
    return file if relative.startswith(os.pardir) else relative


def _parse(arguments: Sequence[str]) -> list[str]:
    """Return the command; all that follows ``--`` belongs to it."""
    parser = argparse.ArgumentParser(
        prog="scavenger agent audit",
        usage="%(prog)s -- COMMAND...",
        allow_abbrev=False,
        description="Run a training script of PyTorch for 5 steps, and name each line that reads a"
        " device value in every step. The script is ended then. Exit code 1 if there are such"
        " lines.",
        epilog="Example: scavenger agent audit -- python train.py",
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help="The training command and its arguments."
    )
    command = own_command(parser.parse_args(arguments).command)
    if not command:
        parser.error("the training command is missing")
    return command
