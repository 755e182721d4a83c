"""`ReadAudit`: finds the lines of a training script that read a device value in every step.

A read makes the host wait until the device has done all that was queued, so the device then waits
for the host. Each operation that reads is trapped for a few iterations, on a CPU just as on a GPU.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.amp import grad_scaler
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

WARM_UP = 2  # steps before the first one that is looked at: models and optimizers are made there
AUDITED_STEPS = 3
READING_OPERATIONS = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "_to_copy")
READING_METHODS = ("tolist", "numpy", "cpu")  # on a CPU these are no operation
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
SCALER = grad_scaler.__file__
OPTIMIZERS = os.path.dirname(torch.optim.__file__)
AGENT = str(Path(__file__).parents[1])


@dataclass(frozen=True, slots=True, order=True)
class ReadingLine:
    """A line of the script that reads a device value.

    Attributes:
        file: Its file.
        line: Its number, from 1.
        is_scaler: Whether a ``GradScaler`` reads for it, to know whether the optimizer may step.
    """

    file: str
    line: int
    is_scaler: bool = False


class OperationTrap(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Calls a function when an operation makes the host wait."""

    def __init__(self, on_read: Callable[[FrameType], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.on_read = on_read

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.overloadpacket.__name__ in READING_OPERATIONS and is_read(func, args, kwargs or {}):
            self.on_read(sys._getframe(1))
        return func(*args, **(kwargs or {}))


class MethodTrap(TorchFunctionMode):
    """The same for methods of tensors that are no operation where the tensor is on a CPU."""

    def __init__(self, on_read: Callable[[FrameType], None]) -> None:
        super().__init__()
        self.on_read = on_read

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") in READING_METHODS:
            self.on_read(sys._getframe(1))
        return func(*args, **(kwargs or {}))


def is_read(operation: Any, arguments: Sequence[Any], options: dict[str, Any]) -> bool:
    """Whether the host waits for this operation: of copies, those from a device to the host."""
    if operation.overloadpacket.__name__ != "_to_copy":
        return True
    target, source = options.get("device"), arguments[0].device
    is_to_host = target is not None and torch.device(target).type == "cpu"
    return is_to_host and source.type != "cpu" and not options.get("non_blocking")


def line_of_script(frame: FrameType | None) -> ReadingLine | None:
    """Return the innermost line outside libraries; None if the read is none of the script's.

    The counters that optimizers keep on the host are read by their own code, which waits for no
    device.
    """
    is_scaler = False
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(OPTIMIZERS):
            return None
        is_scaler = is_scaler or file == SCALER
        if not file.startswith((*LIBRARIES, AGENT, "<")):
            return ReadingLine(file, frame.f_lineno, is_scaler)
        frame = frame.f_back
    return None


class ReadAudit:
    """Traps reads in the script of this process, writes what it found, and ends the process.

    Attributes:
        lines: For each audited step, the lines that read in it.

    Args:
        report: File to write to, as JSON.
    """

    def __init__(self, report: Path) -> None:
        self.report, self.steps = report, 0
        self.lines: list[set[ReadingLine]] = []
        self.traps: tuple[Any, ...] = (OperationTrap(self._note), MethodTrap(self._note))

    def listen(self) -> None:
        """Begin with the third step of an optimizer."""
        register_optimizer_step_post_hook(self._after_step)

    def _note(self, frame: FrameType) -> None:
        line = line_of_script(frame)
        if line is not None:
            self.lines[-1].add(line)

    def _after_step(self, *_: Any) -> None:
        self.steps += 1
        if self.steps < WARM_UP:
            return
        if self.steps == WARM_UP:
            for trap in self.traps:
                trap.__enter__()
        if len(self.lines) < AUDITED_STEPS:
            self.lines.append(set())
            return
        for trap in self.traps[::-1]:
            trap.__exit__(None, None, None)
        self._end()

    def _end(self) -> None:
        found = sorted(set.intersection(*self.lines))
        fresh = self.report.with_suffix(".new")
        fresh.write_text(json.dumps([asdict(line) for line in found]))
        fresh.replace(self.report)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0)  # the script would go on for hours
