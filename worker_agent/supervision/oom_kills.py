"""How many processes the kernel has killed around us because memory ran out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def oom_kills(root: Path = Path("/")) -> int | None:
    """Return the kernel's count for this machine's control group; None where it does not say.

    Both versions of control groups are understood; a machine without any has the count of the
    whole computer.

    Args:
        root: Where the kernel's files are; tests have their own.
    """
    for file in _counters(root):
        with suppress(OSError, ValueError, StopIteration):
            lines = (line.split() for line in file.read_text().splitlines())
            return next(int(value) for name, value in lines if name == "oom_kill")
    return None


def _counters(root: Path) -> Iterator[Path]:
    """Yield the files that may hold the count, the nearest to this process first."""
    mounted = root / "sys/fs/cgroup"
    for controllers, group in _groups(root):
        if "memory" in controllers.split(","):
            yield mounted / "memory" / group / "memory.oom_control"
            yield mounted / "memory/memory.oom_control"
        if not controllers:
            yield mounted / group / "memory.events"
            yield mounted / "memory.events"
    yield root / "proc/vmstat"


def _groups(root: Path) -> list[tuple[str, str]]:
    """Return each hierarchy's controllers and this process's place in it."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    fields = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    return [(controllers, group.lstrip("/")) for _, controllers, group in fields]
