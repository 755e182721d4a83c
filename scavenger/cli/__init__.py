"""The ``scavenger`` command: one file per command group, rendering included.

Commands parse options, call the controller through ``scavenger.client`` or the library itself, and
print tables or JSON. ``worker_agent`` prints its own commands with ``output`` and ``errors``; no
module of the library imports this package.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line, or say in one line which extra it needs."""
    if sys.argv[1:2] == ["agent"]:
        # A training container has the agent's few packages and not those of the command line.
        agent = [sys.executable, "-m", "worker_agent", *(sys.argv[2:] or ["--help"])]
        os.execv(agent[0], agent)  # noqa: S606
    try:
        from scavenger.cli.main import main as run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("scavenger"):
            raise
        sys.exit(f"scavenger: {error.name} is not installed: pip install 'scavenger[cli]'")
    run()
