"""Runs a command where there is no job: nothing is changed, or measured into a file only."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from worker_agent.run.surroundings import hooked


def become(words: Sequence[str], environment: Mapping[str, str], out: Path | None) -> NoReturn:
    """Let this process be the command, measured into a file if one is given.

    Raises:
        OSError: There is no such command, or it cannot be run.
    """
    if out is None:
        os.execvpe(words[0], list(words), dict(environment))  # noqa: S606
    ours = {"SCAVENGER_ROWS": str(out.resolve())}
    os.execvpe(words[0], list(words), hooked(environment, ours))  # noqa: S606
