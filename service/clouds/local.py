"""The local cloud: machines that are process groups on this computer.

A machine is a file ``<launch key>.vm`` that its processes keep locked. A child inherits the lock
from its parent, and the kernel drops it with the last process, so the kernel knows whether a
machine lives, even after a crash. Beside the file lie ``<launch key>.pid``, written by the
supervisor, and ``<launch key>.log``, its output.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from uuid import uuid4

import psutil
from pydantic import BaseModel, ConfigDict

from service.clouds.provider import CloudTraits, Instance, InstanceState, LaunchRequest
from service.errors import LaunchKeyUsed, LaunchRefused, OutOfCapacity, ProviderUnavailable
from service.offers import SeenPrice
from service.prices import PricedRegion
from service.settings import Settings

PID_FILE = "SCAVENGER_PID_FILE"  # what tells the supervisors of two machines apart
SUPERVISOR_MODULE = ("-m", "worker_agent.supervisor")
PACKAGE_ROOT = Path(__file__).parents[2]  # supervisors run the same version as the controller
KILL_TIMEOUT = 2.0  # a killed group is gone in milliseconds unless the computer is overloaded
# Python with a framework takes that long to start; the resize itself takes hundredths of a second.
PROCESS_START_SECONDS = 2.0
OUT_OF_RESOURCES = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}


class LocalEntry(BaseModel):
    """This computer in the clouds file; its machines are in the directory of ``--machines``."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class LocalProvider:
    """Start machines as process groups that outlive the controller.

    A machine's environment is that of its boot, a PATH that begins with the directory of
    ``python``, HOME and what the supervisor needs; nothing leaks from the controller. Only
    its supervisor ends it by the clock, so ``max_run_seconds`` says nothing here.

    Args:
        root: Directory for the machines' files; made if missing.
        python: Interpreter that runs the supervisor.
        boot_delay: Seconds a machine pretends to boot.
        name: Name of the entry in the clouds file.
    """

    Entry = LocalEntry

    def __init__(
        self, root: Path, python: str, boot_delay: float = 0.0, *, name: str = "local"
    ) -> None:
        self.name = name
        # What is listed is what runs, and a supervisor starts within the ledger's grace: no list
        # lags and no boot is paid for.
        self.traits = CloudTraits(
            machine_type="local",
            resize_seconds=PROCESS_START_SECONDS + boot_delay,
            priced=PricedRegion("local", "here"),
        )
        self._root = root.resolve()
        self._python = python
        self._boot_delay = boot_delay

    @classmethod
    def open(cls, name: str, entry: LocalEntry, settings: Settings) -> LocalProvider:
        """Open an entry of the clouds file; workers run with the controller's interpreter."""
        root = settings.machines or settings.home / "machines"
        return cls(root, sys.executable, settings.boot_delay, name=name)

    @property
    def account(self) -> str:
        """Number in a file of the directory, which tells it from all others."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = self._root / "account"
        with _exclusive(self._root):
            if not file.exists():
                draft = file.with_suffix(".new")
                draft.write_text(uuid4().hex)
                draft.replace(file)
        return file.read_text()

    def launch(self, request: LaunchRequest) -> Instance:
        """Start a process group, or return the one this launch key already started.

        Raises:
            OutOfCapacity: The computer has no room for another process now.
            LaunchRefused: The key's machine is gone, or ``python`` cannot be run.
        """
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        machine = self._machine(request.launch_key)
        lock = _claim(machine, request)
        if lock is None:
            instance = _instance(machine)
            if instance.state is InstanceState.GONE:
                raise LaunchKeyUsed(f"the machine of launch key {request.launch_key} is gone")
            return instance
        with os.fdopen(lock):
            self._spawn(request, machine, lock)
        return _instance(machine)

    def list(self) -> tuple[Instance, ...]:
        instances = []
        for machine in sorted(self._root.glob("*.vm")):
            with suppress(FileNotFoundError):  # forgotten since
                instances.append(_instance(machine))
        return tuple(instances)

    def spot_prices(self, zone: str, machine_type: str, since: datetime) -> tuple[SeenPrice, ...]:
        """Return nothing: this computer has no market."""
        return ()

    def terminate(self, provider_id: str) -> None:
        """Kill the machine's processes and wait until the last one has let go of the lock.

        Here a machine is gone on return already.

        Raises:
            ProviderUnavailable: One still lives after 2 s; repeat.
        """
        machine = self._machine(provider_id)
        deadline = time.monotonic() + KILL_TIMEOUT
        while _is_alive(machine):
            if time.monotonic() > deadline:
                raise ProviderUnavailable(f"{provider_id} still runs after {KILL_TIMEOUT:.0f} s")
            _kill(machine)
            time.sleep(0.01)

    def forget(self, provider_id: str) -> None:
        machine = self._machine(provider_id)
        if _is_alive(machine):
            raise ValueError(f"{provider_id} is not gone")
        # What it is listed by goes last: killed in between, this is done again.
        for file in sorted(self._root.glob(f"{provider_id}.*"), key=lambda file: file == machine):
            if file.is_dir():
                shutil.rmtree(file, ignore_errors=True)
            else:
                file.unlink(missing_ok=True)

    def _machine(self, launch_key: str) -> Path:
        return self._root / f"{launch_key}.vm"

    def _spawn(self, request: LaunchRequest, machine: Path, lock: int) -> None:
        try:
            with open(machine.with_suffix(".log"), "ab", opener=_private) as log:
                supervisor = subprocess.Popen(
                    [self._python, *SUPERVISOR_MODULE],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=PACKAGE_ROOT,
                    env=self._environment(request, machine),
                    start_new_session=True,
                    pass_fds=[lock],
                )
        except OSError as error:
            if error.errno in OUT_OF_RESOURCES:
                machine.unlink()
                raise OutOfCapacity(f"cannot start another process: {error}") from error
            raise LaunchRefused(f"cannot run {self._python}: {error}") from error
        # Reaps it; a zombie would stay as long as this controller.
        threading.Thread(target=supervisor.wait, daemon=True).start()

    def _environment(self, request: LaunchRequest, machine: Path) -> Mapping[str, str]:
        home = str(Path.home())
        worker = replace(
            request.boot.worker_env,
            directory=home,
            boot_delay=self._boot_delay,
            spool=str(machine.with_suffix(".spool")),
            code=str(machine.with_suffix(".code")),
            pid_file=str(_pid_file(machine)),
        )
        path = f"{Path(self._python).parent}:{os.defpath}"
        return {"PATH": path, "HOME": home, **worker.to_env()}


def _pid_file(machine: Path) -> Path:
    return machine.with_suffix(".pid")


def _claim(machine: Path, request: LaunchRequest) -> int | None:
    """Return the locked file of a new machine, or None if its key was used before.

    The file appears under its name complete and locked: no reader sees a machine half made.
    """
    with _exclusive(machine.parent):
        if machine.exists():
            return None
        draft = machine.with_suffix(".new")
        lock = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        facts = {
            "launch_key": request.launch_key,
            "job": request.job,
            "labels": dict(request.labels),
            "created": time.time(),
        }
        os.write(lock, json.dumps(facts).encode())
        os.fsync(lock)  # an empty file after a power failure would be a machine without facts
        draft.rename(machine)
        return lock


@contextmanager
def _exclusive(root: Path) -> Iterator[None]:
    """Keep other controllers from creating machines in the directory meanwhile."""
    with open(root / "lock", "w", opener=_private) as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _instance(machine: Path) -> Instance:
    facts = json.loads(machine.read_text())
    return Instance(
        provider_id=machine.stem,
        launch_key=facts["launch_key"],
        job=facts["job"],
        state=_state(machine),
        labels=facts.get("labels", {}),  # records of earlier versions have none
    )


def _state(machine: Path) -> InstanceState:
    if not _is_alive(machine):
        return InstanceState.GONE
    has_booted = _pid_file(machine).exists()
    return InstanceState.RUNNING if has_booted else InstanceState.PENDING


def _is_alive(machine: Path) -> bool:
    try:
        with machine.open() as probe:
            fcntl.flock(probe, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _kill(machine: Path) -> None:
    """Kill the machine's group, what its supervisor started, and all else that keeps it locked."""
    supervisor = _supervisor(machine)
    strays = [*_descendants(supervisor), *_holders(machine)]
    if supervisor is not None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(supervisor, signal.SIGKILL)
    for process in strays:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.kill()


def _supervisor(machine: Path) -> int | None:
    """Return the supervisor's pid, its group's too, unless another process has it by now."""
    try:
        pid = int(_pid_file(machine).read_text())
    except FileNotFoundError:
        return None
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        process = psutil.Process(pid)
        is_dead = process.status() == psutil.STATUS_ZOMBIE
        is_ours = is_dead or process.environ().get(PID_FILE) == str(_pid_file(machine))
        return pid if is_ours else None
    # The kernel gives the number to no new process while the group has members.
    return pid


def _descendants(pid: int | None) -> Iterator[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        if pid is not None:
            yield from psutil.Process(pid).children(recursive=True)


def _holders(machine: Path) -> Iterator[psutil.Process]:
    """Yield processes that inherited the lock; one that only tests it opened the file to read."""
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            files = [file for file in process.open_files() if file.path == str(machine)]
            if process.pid != os.getpid() and any(file.mode != "r" for file in files):
                yield process
