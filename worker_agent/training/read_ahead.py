"""`ReadAheadDetector`: checks that a script trains on each batch before it asks for the next one.

Between two batches an iteration is counted, and workers and batch may change. So a loader that
reads one batch ahead has it trained as part of another iteration, silently. A script that skips
its first batch causes the same events: two batches are requested, then one is trained on. The
difference lies in which code asks, and in where the first batch is kept:

- A script that has once trained on a batch before it asked for the next does not read ahead. From
  then on any batch may be skipped, and the detector looks no more.
- A loop that skips asks for both batches from the same place. When it asks for the second, it holds
  the first one in a variable; or it is a ``for`` whose variables have changed, as its body has run;
  or the first batch is gone, as ``filter`` drops it. A loader asks for the first batch elsewhere
  than for those that follow; code that takes several at once keeps them, and changes no variable.
- The thread that asks is the one in which the model runs.
- When the model runs, that loop is on the stack, and its variable holds the second batch. A loader
  has returned by then; a loop that trains on the batch before has kept it in another variable.
"""

from __future__ import annotations

import dis
import inspect
import os
import sys
import threading
from collections import deque
from types import CodeType, FrameType
from typing import Any
from weakref import ref

from worker_agent.errors import ReadAhead

Callers = list[tuple[FrameType, int]]

FOR_ITER, CACHE = dis.opmap["FOR_ITER"], dis.opmap["CACHE"]
AGENT_PACKAGE = __name__.partition(".")[0] + "."
READ_AHEAD_REMEDY = (
    "the script requested a batch before it had trained on the previous one, which would silently "
    "count for another iteration. Does a loader read ahead? Give it a length (in "
    "Lightning __len__, which may return 10**9), leave it out of accelerator.prepare, and let no "
    "thread or worker process draw from job.batches: load the samples of a batch when it is drawn. "
    "Do you accumulate gradients over several batches? Say micro_batches=... to job.prepare and "
    "cut each batch into parts"
)


class ReadAheadDetector:
    """Checks that a script works on one batch at a time, until that is certain.

    Attributes:
        is_confirmed: Whether the script works on each batch before it asks for the next.
    """

    def __init__(self) -> None:
        self.is_confirmed = False
        self._process, self._thread = os.getpid(), threading.get_ident()
        self._is_at_work = False
        self._asked: Callers | None = None
        self._seen: dict[str, int] = {}
        self._loop: Callers = []
        self._handed: list[ref[Any]] = []
        self._refused: ReadAhead | None = None

    def on_request(self) -> None:
        """Take notice that the script asks for a batch.

        Raises:
            ReadAhead: It has not worked on the one before, and is not a loop that skips; or the
                caller is a process that the script has forked.
        """
        if os.getpid() != self._process:
            self._refuse()
        if self.is_confirmed:
            return
        self._raise_again()
        self._thread = threading.get_ident()
        if self._is_at_work:
            self.is_confirmed = True
            self._forget()
            return
        before, self._asked = self._asked, calling_frames()
        seen, self._seen = self._seen, variable_identities(self._asked)
        if before is None:
            return
        self._loop = find_loop(before, self._asked)
        has_moved_on = seen != self._seen
        if not self._loop or not self._is_passed_on(before, self._asked, has_moved_on=has_moved_on):
            self._refuse()

    def hand(self, batch: Any) -> Any:
        """Return a batch that is about to be given to the script."""
        self._is_at_work = False
        if not self.is_confirmed:
            self._handed.append(ref(batch))
        return batch

    def on_work(self, *, is_called_by_script: bool) -> None:
        """Take notice that the model or its optimizer is at work.

        Args:
            is_called_by_script: Whether the script's function is below this one on the stack;
                gradients of a device come from a thread of the framework.

        Raises:
            ReadAhead: The model works on an earlier batch than the last one; or another thread
                draws the batches, which reads ahead sooner or later.
        """
        if self.is_confirmed:
            return
        self._raise_again()
        if is_called_by_script and threading.get_ident() != self._thread:
            self._refuse()
        if not self._is_at_work and self._loop:
            functions = [function for function, _ in self._loop]
            is_kept = any(holds_batch(function, self._handed[:-1]) for function in functions)
            if is_kept or (is_called_by_script and not is_running(functions[-1])):
                self._refuse()
        self._is_at_work = True

    def _is_passed_on(self, before: Callers, now: Callers, *, has_moved_on: bool) -> bool:
        """Whether the caller has finished with the batch before, and its helper has returned."""
        function, place = now[0]
        if before[0][0] is not function or holds_batch(function, self._handed[-1:]):
            return True
        is_for = function.f_code.co_code[place] == FOR_ITER
        return is_for and (has_moved_on or self._handed[-1]() is None)

    def _refuse(self) -> None:
        self._forget()
        self._refused = ReadAhead(READ_AHEAD_REMEDY)
        raise self._refused

    def _raise_again(self) -> None:
        if self._refused is not None:
            raise self._refused

    def _forget(self) -> None:
        self._asked, self._seen, self._loop, self._handed = None, {}, [], []


def calling_frames() -> Callers:
    """Return the script's calling functions, innermost first, and the instruction each is at."""
    frame: FrameType | None = sys._getframe(1)
    asked = []
    while frame is not None:
        if not str(frame.f_globals.get("__name__", "")).startswith(AGENT_PACKAGE):
            asked.append((frame, instruction_at(frame.f_code, frame.f_lasti)))
        frame = frame.f_back
    return asked


def instruction_at(code: CodeType, place: int) -> int:
    """Return where the instruction at a place begins.

    A frame may stand at one of its inline caches, if Python has specialised the instruction.
    """
    content = code.co_code
    while place > 0 and content[place] == CACHE:
        place -= 2
    return place


def find_loop(before: Callers, now: Callers) -> Callers:
    """Return the callers, out to the function that continued from one batch to the next.

    Generators, such as a loader of the script or a progress bar, are looked through. The result is
    empty if a function asks from another place now.
    """
    for number, ((one, place), (other, its_place)) in enumerate(zip(before, now, strict=False)):
        if one.f_code is not other.f_code or place != its_place:
            return []
        if one is other and not one.f_code.co_flags & inspect.CO_GENERATOR:
            return now[: number + 1]
    return []


def variable_identities(asked: Callers) -> dict[str, int]:
    """Return the identity of each variable's object; it differs after the body of a loop ran."""
    return {name: id(value) for name, value in asked[0][0].f_locals.items()} if asked else {}


def holds_batch(function: FrameType, batches: list[ref[Any]]) -> bool:
    """Whether one of these batches is in a variable of a function, or in a queue in one."""
    wanted = {id(batch()) for batch in batches} - {id(None)}
    values = function.f_locals.values()
    queued = [each for value in values if isinstance(value, deque) for each in value]
    return any(id(value) in wanted for value in (*values, *queued))


def is_running(function: FrameType) -> bool:
    """Whether a function is below this one on the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not function:
        frame = frame.f_back
    return frame is not None
