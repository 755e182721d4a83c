"""A controller of one's own, for as long as it is needed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scavenger.cli.errors import ControllerDied
from scavenger.cli.serve import command_of_controller
from scavenger.client.client import Client
from scavenger.client.errors import ClientError
from scavenger.client.profile import CONNECTION_FILE, Profile, read_connection

LOG_FILE = "controller.log"
TAIL_LINES = 10
START_PATIENCE = 60.0
STOP_PATIENCE = 30.0
INTERVAL = 0.1


@contextmanager
def run_controller(home: Path, pause: Callable[[float], None]) -> Iterator[Profile]:
    """Run a controller in a directory, and stop it whatever happens.

    Raises:
        ControllerDied: It did not come up; the error holds what it said last.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    before = stamp(home / CONNECTION_FILE)
    with (home / LOG_FILE).open("wb") as log:
        process = subprocess.Popen(
            command_of_controller(port=0, home=home),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # Ctrl-C in a terminal is for the demo, which stops its controller last.
            start_new_session=True,
        )
    try:
        yield await_controller(process, home, before, pause)
    finally:
        stop(process)


def await_controller(
    process: subprocess.Popen[bytes],
    home: Path,
    before: tuple[int, int] | None,
    pause: Callable[[float], None],
) -> Profile:
    """Wait until a controller has left a fresh address and answers there."""
    for _ in range(round(START_PATIENCE / INTERVAL)):
        if process.poll() is not None:
            what = f"the controller ended with exit code {process.returncode} before it was ready"
            raise ControllerDied(what, tail(home / LOG_FILE))
        if stamp(home / CONNECTION_FILE) != before:
            profile = read_connection(home / CONNECTION_FILE)
            if profile is not None and is_well(profile):
                return profile
        pause(INTERVAL)
    what = f"the controller was not ready within {START_PATIENCE:.0f} s"
    raise ControllerDied(what, tail(home / LOG_FILE))


def is_well(profile: Profile) -> bool:
    """Tell whether a controller answers."""
    try:
        with Client(profile.url, profile.token) as client:
            return client.health().status == "ok"
    except ClientError:
        return False


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end; one that does not is ended."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
        process.wait(STOP_PATIENCE)
    if process.poll() is None:
        process.kill()
        process.wait()


def stamp(path: Path) -> tuple[int, int] | None:
    """Return what changes when a file is written; None while there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def tail(path: Path) -> str:
    """Return the last lines of a log."""
    return "\n".join(path.read_text(errors="replace").splitlines()[-TAIL_LINES:])
