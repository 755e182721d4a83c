"""How the processes of a machine share the model: what it profiles first, and what they ask for."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from scavenger.layout import Layout
from scavenger.measurement.layout_profile import LAYOUT_PROFILE, LayoutProfile
from scavenger.protocol import ProfileReport, objection_to_profile
from scavenger.stack import MAX_REFUSAL_LENGTH
from worker_agent.supervisor.exit_reason import RunResult
from worker_agent.supervisor.run import TrainingCommand

PATIENCE = 400.0  # s: the machine has 15 minutes to say hello, and starts the script twice

log = logging.getLogger(__name__)


def profiling_command(command: TrainingCommand, report: Path) -> TrainingCommand:
    """Return the command that profiles the model of a training command, and writes a report."""
    program = (sys.executable, "-m", "worker_agent", "profile", "--quiet", "--out", str(report))
    limit = ("--patience", str(PATIENCE))
    return TrainingCommand((*program, *limit, "--", *command.arguments), command.directory)


def read_report(worker: str, result: RunResult, report: Path) -> ProfileReport:
    """Return what a profiling command measured, or why it did not."""
    try:
        found: LayoutProfile = LAYOUT_PROFILE.validate_json(report.read_bytes())
    except (OSError, ValidationError):
        said = next((line for line in reversed(result.tail.splitlines()) if line.strip()), "")
        why = f"profiling ended with exit code {result.code}: {said.strip()}"
        return ProfileReport(worker, None, why[:MAX_REFUSAL_LENGTH])
    why = objection_to_profile(found) or ""
    return ProfileReport(worker, None if why else found, why)


def read_next_layout(file: Path) -> Layout | None:
    """Return the layout that the processes of this machine are to be started again in, if any."""
    with suppress(FileNotFoundError):
        text = file.read_text()
        file.unlink()
        try:
            return Layout.parse(text)
        except ValueError as error:
            log.warning("the command asks for no layout: %s", error)
    return None
