"""A computer that boots: the real script, with a directory for its disk and harmless commands."""

from __future__ import annotations

import importlib.util
import re
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

# What an image must bring for the agent; the standard library comes with its python3.
IMAGE_MODULES = (
    "annotated_types",
    "anyio",
    "certifi",
    "h11",
    "httpcore",
    "httpx",
    "idna",
    "numpy",
    "psutil",
    "pydantic",
    "pydantic_core",
    "typing_extensions",
    "typing_inspection",
)
# It notes the moment. Where the processes have a namespace of their own, its first process waits
# for the plug, and all end with it; elsewhere they are left to the test.
POWER_OFF = """#!/bin/sh
read -r up _ </proc/uptime
echo "$up" >>"{root}/off"
[ ! -p "{root}/plug" ] || echo out >"{root}/plug"
exec sleep 600
"""


@dataclass
class Computer:
    """One computer, on until its script powers it off or the test pulls the plug.

    Attributes:
        root: Its disk.
        modules: What its image brings for Python; None for all that this Python has, a framework
            among it, but not Scavenger.
    """

    root: Path
    modules: Sequence[str] | None = IMAGE_MODULES
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        commands = self.root / "bin"
        commands.mkdir(parents=True)
        for name in ("poweroff", "systemctl", "shutdown"):
            write_program(commands / name, POWER_OFF.format(root=self.root))
        write_program(commands / "python3", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        image = self.root / "image"
        image.mkdir()
        for name in self.modules or ():
            install(name, image)
        if self.modules is None:
            for file in Path(sysconfig.get_path("purelib")).iterdir():
                if "scavenger" not in file.name:
                    (image / file.name).symlink_to(file)

    @property
    def console(self) -> str:
        """What it has printed."""
        file = self.root / "console"
        return file.read_text(errors="replace") if file.exists() else ""

    @property
    def deadline_file(self) -> Path:
        """Where its timer looks."""
        return self.root / "run" / "scavenger" / "deadline"

    def has_deadline(self) -> bool:
        """Tell whether its timer has something to read."""
        return self.deadline_file.exists() and self.deadline_file.read_text().endswith("\n")

    @property
    def off_at(self) -> float | None:
        """When it was powered off, in seconds since the boot of this computer; None if not yet."""
        file = self.root / "off"
        text = file.read_text() if file.exists() else ""
        return float(text.split()[0]) if text.endswith("\n") else None

    def boot(self, script: str, *, place: Sequence[str] = (), **environment: str) -> None:
        """Run the script as a cloud does.

        Args:
            script: Start-up script.
            place: Command before it, which runs it in other namespaces.
            environment: Variables that a real computer does not need.
        """
        (self.root / "off").unlink(missing_ok=True)
        file = self.root / "script"
        file.write_text(script)
        with (self.root / "console").open("ab") as console:
            self.process = subprocess.Popen(
                [*place, "sh", str(file)],
                env={
                    "PATH": f"{self.root / 'bin'}:/usr/bin:/bin",
                    "PYTHONPATH": str(self.root / "image"),
                    "SCAVENGER_ROOT": str(self.root),
                    **environment,
                },
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )

    def processes(self) -> Iterator[psutil.Process]:
        """Yield the processes that run on it, those of the timer among them."""
        return processes_of(self.root)

    def timer(self) -> psutil.Process | None:
        """Return the dead man's timer: the copy of the script that ignores SIGTERM."""
        for process in self.processes():
            with suppress(OSError, psutil.Error):
                status = Path(f"/proc/{process.pid}/status").read_text()
                ignored = int(status.split("SigIgn:")[1].split()[0], 16)
                is_copy = process.cmdline()[-1:] == [f"{self.root}/script"]
                if is_copy and ignored >> (signal.SIGTERM - 1) & 1:
                    return process
        return None

    def wait_until_off(self) -> None:
        """Wait until it powers itself off or is unplugged."""
        assert self.process is not None
        while self.off_at is None and self.process.poll() is None:
            time.sleep(0.02)

    def unplug(self) -> None:
        """End all that runs on it."""
        if self.process is None:
            return
        running = [True]
        while any(running):
            running = [kill(process) for process in self.processes()]
            self.process.poll()
        self.process.wait()


def processes_of(directory: Path) -> Iterator[psutil.Process]:
    """Yield the processes whose environment or command line names a directory.

    A session or a parent is left by a process that wants to; its environment stays.
    """
    name = re.compile(rf"{re.escape(str(directory))}(/|$|[\0:])")
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            told = Path(f"/proc/{process.pid}/environ").read_bytes().decode(errors="replace")
            if name.search(told) or any(map(name.search, process.cmdline())):
                yield process


def kill(process: psutil.Process) -> bool:
    """Kill a process; tells whether it still ran."""
    with suppress(psutil.Error):
        process.kill()
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def install(module: str, image: Path) -> None:
    """Put a module of this test's Python, and the libraries beside it, into an image."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    file = Path(spec.origin)
    place = file.parent if spec.submodule_search_locations else file
    (image / place.name).symlink_to(place)
    libraries = place.with_name(f"{module}.libs")
    if libraries.exists():
        (image / libraries.name).symlink_to(libraries)
