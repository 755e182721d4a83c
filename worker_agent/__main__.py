"""``python -m worker_agent``: the command line of the agent (``scavenger agent ...``)."""

from __future__ import annotations

import sys

from worker_agent.launcher.audit import audit
from worker_agent.launcher.command import run
from worker_agent.launcher.profile import profile


def main() -> None:
    """Run one command of the agent.

    ``run``, ``audit`` and ``profile`` need no more packages than the agent itself: a training
    container may have no others.
    """
    if sys.argv[1:2] == ["run"]:
        run(sys.argv[2:])
    if sys.argv[1:2] == ["audit"]:
        audit(sys.argv[2:])
    if sys.argv[1:2] == ["profile"]:
        profile(sys.argv[2:])
    try:
        from scavenger.cli.characters import use_characters_of
        from worker_agent.cli import app
    except ModuleNotFoundError as error:
        sys.exit(f"{error.name} is not installed: pip install 'scavenger[cli]'")
    for stream in (sys.stdout, sys.stderr):
        use_characters_of(stream)
    app(prog_name="scavenger agent")


if __name__ == "__main__":
    main()
