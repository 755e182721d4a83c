"""Attempt: one run of the training command, from its start to its Ending.

It ends by itself, or because somebody outside wants it: the prepaid time is over, the machine is
told to end, or training has stopped advancing.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from worker_agent.heartbeat import Page, Phase
from worker_agent.settings import Command
from worker_agent.supervision.ending import (
    NOT_STARTED,
    AfterTraining,
    ByItself,
    Cause,
    Drained,
    Ending,
    NotStarted,
    OutOfMemory,
    Stalled,
)
from worker_agent.supervision.notice import Notice
from worker_agent.supervision.oom_kills import oom_kills
from worker_agent.supervision.output import Log, Output
from worker_agent.supervision.prepaid import Prepaid
from worker_agent.supervision.processes import ask_to_end, cpu_time, dump_stacks, kill_all
from worker_agent.supervision.watchdog import Watchdog

LOOK_EVERY = 0.1  # a lease that was shortened, or a wish to end, is noticed this late
FAREWELL = 4.5  # between asking the command to end and ending the machine, its time used up
LAST_LINES = 0.5  # for what it said last, after that
DUMP = 1.0  # for writing stacks, before the process that hangs is killed
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)  # the second by a shell that saw it
SHORTEST_SECRET = 6  # what is shorter stands in many words that are none

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an attempt has around it.

    Attributes:
        page: Where the training process says how it advances.
        log: Where the command's output goes.
        prepaid: How long the machine may go on.
        notice: Whether the machine was told to end.
        drain: Seconds the command has to end in order, once told.
        stall: Seconds without an iteration that are always allowed.
    """

    page: Page
    log: Log
    prepaid: Prepaid
    notice: Notice
    drain: float
    stall: float


def attempt(
    command: Command,
    environment: Mapping[str, str],
    around: Surroundings,
    secrets: Collection[str] = (),
) -> Ending | None:
    """Run the command once; return None if the prepaid time ended before it did.

    Args:
        command: What to run.
        environment: Its variables.
        around: What it has around it.
        secrets: What is taken out of its last lines.
    """
    around.page.clear()
    kills = oom_kills()
    try:
        child = _start(command, environment)
    except OSError as error:
        return Ending(NOT_STARTED, f"cannot start {command.words[0]}: {error}", NotStarted())
    if child.stdout is None:
        raise AssertionError("the command was started with a pipe")
    output = Output(child.stdout, around.log)
    cause = _accompany(child, around)
    if cause is None:
        output.wait(LAST_LINES)
        return None
    if isinstance(cause, ByItself):
        cause = _seen(child.returncode, kills, around.page)
    return Ending(child.returncode, without_secrets(output.tail(), secrets), cause)


def without_secrets(text: str, secrets: Collection[str]) -> str:
    """Return last lines as the controller may show them; scripts print their environment."""
    for secret in sorted(secrets, key=len, reverse=True):  # one may be a part of another
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, "[redacted]")
    return text


def _start(command: Command, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command.words,
        bufsize=0,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=command.directory,
        env=environment,
        # The only inheritable descriptor is the machine's lock, which lives as long as the command.
        close_fds=False,
    )


def _accompany(child: subprocess.Popen[bytes], around: Surroundings) -> Cause | None:
    """Wait for the end of the command, or bring it about; None when its time was used up."""
    watchdog = Watchdog(around.stall, time.monotonic())
    while True:
        if _has_ended(child, min(LOOK_EVERY, around.prepaid.left())):
            return ByItself()
        if not around.prepaid.left():
            log.warning("the prepaid time is over")
            ask_to_end(around.page.pulse())
            _has_ended(child, FAREWELL)
            return None
        if around.notice.is_heard:
            return _drain(child, around)
        pulse = around.page.pulse()
        stalled_for = watchdog.look(pulse, time.monotonic(), cpu_time(pulse))
        if stalled_for is not None:
            return _end_stalled(child, around.page, stalled_for)


def _drain(child: subprocess.Popen[bytes], around: Surroundings) -> Drained:
    """Let the command end in order, for as long as it may."""
    began = time.monotonic()
    ask_to_end(around.page.pulse())
    was_killed = not _has_ended(child, min(around.drain, around.prepaid.left()))
    if was_killed:
        _kill(child)
    return Drained(time.monotonic() - began, was_killed)


def _end_stalled(child: subprocess.Popen[bytes], page: Page, seconds: float) -> Stalled:
    """Kill a command that does not advance, once it has shown where it hangs."""
    pulse = page.pulse()
    log.warning("no progress for %.0f s after iteration %d", seconds, pulse.iteration)
    if dump_stacks(pulse):
        _has_ended(child, DUMP)
    _kill(child)
    return Stalled(seconds, pulse.iteration)


def _seen(code: int, kills_before: int | None, page: Page) -> Cause:
    """Return why a command ended that nobody here ended."""
    if page.pulse().phase is Phase.OVER:
        return AfterTraining()
    kills = oom_kills()
    is_more = kills is not None and kills_before is not None and kills > kills_before
    return OutOfMemory() if is_more and code in KILLED else ByItself()


def _kill(child: subprocess.Popen[bytes]) -> None:
    kill_all()
    child.kill()
    child.wait()


def _has_ended(child: subprocess.Popen[bytes], patience: float) -> bool:
    with suppress(subprocess.TimeoutExpired):
        child.wait(patience)
        return True
    return False
