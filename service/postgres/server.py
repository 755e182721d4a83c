"""EmbeddedPostgres, the database a controller starts for itself when it was given none.

What lies in its root directory::

    lock           held by the one controller that owns this database
    data           the cluster, of the user the server runs as
    run            the Unix socket
    install        copy of the binaries, only where the server's user cannot reach the originals
    password       of the one role, ``scavenger``
    postgres.log   what the server says, warnings and worse
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

import psutil

from service.errors import PostgresUnavailable
from service.postgres.binaries import (
    SERVER_ENVIRONMENT,
    ServerAccount,
    allow_traversal,
    find_binaries,
    reachable_binaries,
    server_account,
)

DATABASE_ROLE = "scavenger"
SERVER_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "shared_buffers": "64MB",
    "max_connections": "60",
    "fsync": "on",
    "synchronous_commit": "on",
    "log_checkpoints": "off",
}
START_TIMEOUT = 60.0  # recovery after a power failure may take this long
MAX_SOCKET_PATH_BYTES = 80  # bytes; a socket's whole path must stay below 104 on macOS


class EmbeddedPostgres:
    """A Postgres server of our own: started, found again after a crash, and stopped.

    A controller killed by SIGKILL leaves its server running; the next ``start`` finds that server
    through ``postmaster.pid``, makes sure that it serves our data, stops it and starts afresh.

    Args:
        root: Directory that holds this database and nothing else; made if missing.
        binaries: Directory with ``postgres`` and ``initdb``; found by itself if None.
    """

    def __init__(self, root: Path, binaries: Path | None = None) -> None:
        self._root = root.resolve()
        self._binaries = binaries
        self._held = ExitStack()
        self._port: int | None = None

    def start(self) -> Self:
        """Start the server and return once it takes connections.

        Raises:
            PostgresUnavailable: There are no binaries, another controller owns the root, its user
                cannot reach the root, or the server gave up; the message holds its last words.
        """
        _own_directory(self._root)
        with ExitStack() as undo:
            undo.enter_context(_locked(self._root / "lock"))
            account = server_account(self._root)
            allow_traversal(self._root, account)
            install = reachable_binaries(find_binaries(self._binaries), self._root, account)
            cluster = _Cluster(self._root, install, account)
            cluster.create()
            process, self._port = cluster.serve()
            undo.callback(_stop, process)
            self._held = undo.pop_all()
        return self

    def stop(self) -> None:
        """Stop the server and roll back what still runs in it; harmless if it does not run."""
        self._held.close()
        self._port = None

    def url(self, database: str = "postgres") -> str:
        """Return the SQLAlchemy URL of a database; it holds the password, so never log it."""
        if self._port is None:
            raise ValueError("the embedded Postgres is not running")
        return _url(self._root, self._port, database)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()


def url_of_running(root: Path) -> str | None:
    """Return the SQLAlchemy URL of a server that another process runs; None if there is none."""
    try:
        pid, _, _, port, *_ = (root.resolve() / "data" / "postmaster.pid").read_text().splitlines()
    except (OSError, ValueError):
        return None
    is_ours = _postgres_process(int(pid), root.resolve() / "data") is not None
    return _url(root, int(port), "postgres") if is_ours else None


def _url(root: Path, port: int, database: str) -> str:
    password = (root / "password").read_text()
    return f"postgresql+psycopg://{DATABASE_ROLE}:{password}@127.0.0.1:{port}/{database}"


def _own_directory(root: Path) -> None:
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise PostgresUnavailable(f"cannot make the database directory: {error}") from error
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        raise PostgresUnavailable(f"the database directory {root} belongs to another user")


def _locked(path: Path) -> IO[str]:
    lock = open(path, "a+", opener=_private)  # noqa: SIM115
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        owner = lock.read()
        lock.close()
        raise PostgresUnavailable(
            f"the database in {path.parent} is in use by another controller (pid {owner}): stop "
            "that one, or name another directory with --home"
        ) from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@dataclass(frozen=True, slots=True)
class _Cluster:
    """One data directory and what is needed to serve it."""

    root: Path
    binaries: Path
    account: ServerAccount

    @property
    def data(self) -> Path:
        """The data directory; it exists only once it is complete."""
        return self.root / "data"

    @property
    def log(self) -> Path:
        return self.root / "postgres.log"

    def create(self) -> None:
        """Make the data directory and its password, unless they exist."""
        for unfinished in self.root.glob("data.*"):
            shutil.rmtree(unfinished, ignore_errors=True)
        if self.data.exists():
            return
        password = secrets.token_urlsafe(24)
        _write_private(self.root / "password", password)
        # A name of its own, as the initdb of a killed controller may still be writing to another.
        fresh = Path(tempfile.mkdtemp(prefix="data.", dir=self.root))
        self.account.give(fresh)
        self._initialise(fresh, password)
        fresh.rename(self.data)

    def _initialise(self, data: Path, password: str) -> None:
        # initdb reads it after the change of user, so neither our copy nor a pipe would do.
        handed_over = self.root / "password.new"
        _write_private(handed_over, password)
        self.account.give(handed_over)
        try:
            result = self.account.run(
                [
                    str(self.binaries / "initdb"),
                    *("--pgdata", str(data)),
                    *("--username", DATABASE_ROLE),
                    *("--auth", "scram-sha-256", "--pwfile", str(handed_over)),
                    *("--encoding", "UTF8", "--locale", "C"),
                    *("--data-checksums", "--no-instructions"),
                ]
            )
        finally:
            handed_over.unlink()
        if result.returncode:
            raise PostgresUnavailable(f"initdb failed: {result.stderr[-2000:]}")

    def serve(self) -> tuple[subprocess.Popen[bytes], int]:
        """Stop a server that still serves this data; return our own, ready, and its port.

        It may give up once or twice for reasons that pass: another program took the port, or a
        killed server has not yet let go of its shared memory.
        """
        for _ in range(3):
            self._stop_orphan()
            written = self.log.stat().st_size if self.log.exists() else 0
            port = _free_port()
            process = self._spawn(port)
            if self._becomes_ready(process):
                return process, port
            time.sleep(0.1)
            self._forget_empty_pid_file()
        with self.log.open("rb") as log:
            log.seek(written)
            last_words = log.read().decode(errors="replace")[-2000:]
        raise PostgresUnavailable(f"Postgres does not start: {last_words}")

    def _forget_empty_pid_file(self) -> None:
        # Left by a power failure at the wrong moment; Postgres would wait for its owner for ever.
        path = self.data / "postmaster.pid"
        if path.exists() and not path.stat().st_size:
            path.unlink()

    def _stop_orphan(self) -> None:
        pid = self._recorded_pid()
        orphan = pid and _postgres_process(pid, self.data)
        if not orphan:
            return
        for signum, timeout in ((signal.SIGINT, 5.0), (signal.SIGQUIT, 10.0)):
            with suppress(psutil.NoSuchProcess):
                orphan.send_signal(signum)
            if _has_ended(orphan, timeout):
                return
        raise PostgresUnavailable(f"a Postgres left over from a crash (pid {pid}) does not stop")

    def _recorded_pid(self) -> int | None:
        lines = self._pid_file()
        return int(lines[0]) if lines and lines[0].isdigit() else None

    def _pid_file(self) -> list[str]:
        try:
            return (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return []

    def _spawn(self, port: int) -> subprocess.Popen[bytes]:
        with open(self.log, "ab", opener=_private) as log:
            return subprocess.Popen(
                [str(self.binaries / "postgres"), "-D", str(self.data), *self._settings(port)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=SERVER_ENVIRONMENT | self._pid_to_ignore(),
                # Ctrl-C in a terminal is for the controller, who stops its server last.
                start_new_session=True,
                user=self.account.user,
                group=self.account.group,
                extra_groups=self.account.extra_groups,
            )

    def _pid_to_ignore(self) -> dict[str, str]:
        # Postgres takes any live process with the recorded pid for a rival, even after that pid
        # went to another process. Its own tests use this variable to say "not that one".
        pid = self._recorded_pid()
        return {} if pid is None else {"PG_GRANDPARENT_PID": str(pid)}

    def _settings(self, port: int) -> Iterator[str]:
        settings = SERVER_SETTINGS | {
            "port": str(port),
            "unix_socket_directories": self._socket_directory(),
        }
        for name, value in settings.items():
            yield from ("-c", f"{name}={value}")

    def _socket_directory(self) -> str:
        run = self.root / "run"
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir(mode=0o700)
        self.account.give(run)
        return f'"{run}"' if len(os.fsencode(run)) <= MAX_SOCKET_PATH_BYTES else ""

    def _becomes_ready(self, process: subprocess.Popen[bytes]) -> bool:
        deadline = time.monotonic() + START_TIMEOUT
        while process.poll() is None:
            lines = self._pid_file()
            if len(lines) > 7 and lines[0] == str(process.pid) and lines[7].strip() == "ready":
                return True
            if time.monotonic() > deadline:
                _stop(process)
                raise PostgresUnavailable(f"Postgres is not ready after {START_TIMEOUT:.0f} s")
            time.sleep(0.01)
        return False


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    with open(path, "x", opener=_private) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _postgres_process(pid: int, data: Path) -> psutil.Process | None:
    """Return the process with this pid if it is a Postgres that serves our data."""
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        process = psutil.Process(pid)
        if process.name() == "postgres" and str(data) in process.cmdline():
            return process
    return None


def _has_ended(process: psutil.Process, timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        # A container without an init process has none to reap it.
        with suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.01)
                continue
        return True
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    for signum, timeout in ((signal.SIGINT, 30.0), (signal.SIGQUIT, 10.0)):
        process.send_signal(signum)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout)
            return
    process.kill()
    process.wait()
