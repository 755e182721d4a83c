"""The network of computers that are processes here, with a place for each of them.

In a `NamespaceLab` a computer has an address, processes and a metadata server of its own, all of
them without privileges. In a `LoopbackLab` all computers share this computer's network.
"""

from __future__ import annotations

import select
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Protocol

from tests.fakecloud.http_server import HttpServer
from tests.machines.computer import Computer
from tests.machines.metadata import Kind, Metadata, NoticeOf, no_notice

PROJECT = Path(__file__).parents[2]
GATEWAY = "10.77.0.1"
LAB = f"""
mount -t tmpfs none /run
mkdir /run/netns
ip link set lo up
ip link add br0 type bridge
ip addr add {GATEWAY}/16 dev br0
ip link set br0 up
"""
PLACE = """
ip netns add {name}
ip link add v{name} type veth peer name eth0 netns {name}
ip link set v{name} master br0 up
ip -n {name} addr add {address}/16 dev eth0
ip -n {name} addr add 169.254.169.254/32 dev lo
ip -n {name} link set lo up
ip -n {name} link set eth0 up
"""
# The first process of a computer: when it ends, the kernel ends all others.
INIT = '"$@" & read -r _ <"$0"'
CHUNK = 1 << 16


class Lab(Protocol):
    """A network in which computers boot."""

    def url_of(self, port: int) -> str:
        """Return where computers reach a port of this computer's 127.0.0.1."""

    def boot(
        self,
        computer: Computer,
        script: str,
        kind: Kind,
        name: str,
        notice: NoticeOf = no_notice,
    ) -> Metadata:
        """Boot a computer at a place of its own; returns what it can ask about itself.

        Args:
            computer: It is off.
            script: Start-up script.
            kind: Whose metadata it finds.
            name: The cloud's number of the machine.
            notice: Returns when the cloud takes it back, as far as it may know.
        """


@contextmanager
def open_lab() -> Iterator[Lab]:
    """Open the most faithful network that this computer allows."""
    with ExitStack() as stack:
        yield NamespaceLab(stack) if has_namespaces() else LoopbackLab(stack)


@contextmanager
def open_loopback() -> Iterator[Lab]:
    """Open the network that every computer allows."""
    with ExitStack() as stack:
        yield LoopbackLab(stack)


def has_namespaces() -> bool:
    """Tell whether this user may make namespaces and networks in them."""
    try:
        command = ["unshare", "-Urnm", "ip", "link", "add", "br0", "type", "bridge"]
        return subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@dataclass
class LoopbackLab:
    """Computers at 127.0.0.2 and after; variables lead them to their metadata."""

    stack: ExitStack
    _numbers: Iterator[int] = field(default_factory=lambda: count(2))

    def url_of(self, port: int) -> str:
        return f"http://127.0.0.1:{port}"

    def boot(
        self,
        computer: Computer,
        script: str,
        kind: Kind,
        name: str,
        notice: NoticeOf = no_notice,
    ) -> Metadata:
        metadata = Metadata(kind, name, f"127.0.0.{next(self._numbers)}", notice)
        server = self.stack.enter_context(HttpServer(metadata.answer))
        computer.boot(script, **metadata.variables(server.url))
        self.stack.callback(computer.unplug)
        return metadata


@dataclass
class NamespaceLab:
    """Computers with networks and processes of their own on one bridge."""

    stack: ExitStack
    _numbers: Iterator[int] = field(default_factory=lambda: count(2))
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._inside = self.stack.enter_context(ours)
        inside = [sys.executable, "-m", "tests.machines.inside", str(theirs.fileno())]
        with theirs:
            holder = subprocess.Popen(
                ["unshare", "-Urnm", *inside],
                pass_fds=[theirs.fileno()],
                cwd=PROJECT,
                # Ctrl-C must not take the network away before the computers in it are off.
                start_new_session=True,
            )
        self.stack.callback(holder.wait)
        self.stack.callback(holder.kill)
        assert ours.recv(10) == b"ready"
        self._enter = ["nsenter", f"--target={holder.pid}", "--user", "--mount", "--net"]
        self._enter += ["--preserve-credentials", "--wd=/"]
        self._run(LAB)

    def url_of(self, port: int) -> str:
        listener = self._listen("", GATEWAY, 0)
        self.stack.callback(listener.close)
        threading.Thread(target=relay_all, args=(listener, port), daemon=True).start()
        return f"http://{GATEWAY}:{listener.getsockname()[1]}"

    def boot(
        self,
        computer: Computer,
        script: str,
        kind: Kind,
        name: str,
        notice: NoticeOf = no_notice,
    ) -> Metadata:
        with self._turn:
            number = next(self._numbers)
            place = f"m{number}"
            metadata = Metadata(kind, name, f"10.77.{number // 250}.{number % 250 + 1}", notice)
            self._run(PLACE.format(name=place, address=metadata.address))
            listener = self._listen(place, "169.254.169.254", 80)
        self.stack.enter_context(HttpServer(metadata.answer, listener))
        plug = computer.root / "plug"
        plug.unlink(missing_ok=True)
        subprocess.run(["mkfifo", str(plug)], check=True)
        # The computer's own PATH has none of the commands that could end the true computer.
        ip = str(shutil.which("ip"))
        within = [ip, "netns", "exec", place, "unshare", "-mpf", "--kill-child", "--mount-proc"]
        computer.boot(script, place=[*self._enter, *within, "sh", "-c", INIT, str(plug)])
        self.stack.callback(computer.unplug)
        return metadata

    def _run(self, script: str) -> None:
        subprocess.run([*self._enter, "sh", "-ec", script], check=True)

    def _listen(self, place: str, host: str, port: int) -> socket.socket:
        self._inside.send(f"{place} {host} {port}".encode())
        _, numbers, _, _ = socket.recv_fds(self._inside, 10, 1)
        return socket.socket(fileno=numbers[0])


def relay_all(listener: socket.socket, port: int) -> None:
    """Connect every caller with a port of 127.0.0.1, until the listener is closed."""
    with suppress(OSError):
        while True:
            caller, _ = listener.accept()
            threading.Thread(target=relay, args=(caller, port), daemon=True).start()


def relay(caller: socket.socket, port: int) -> None:
    """Carry bytes both ways until either side has said all."""
    with suppress(OSError), caller, socket.create_connection(("127.0.0.1", port)) as callee:
        other: Mapping[socket.socket, socket.socket] = {caller: callee, callee: caller}
        while True:
            for end in select.select([caller, callee], [], [])[0]:
                chunk = end.recv(CHUNK)
                if not chunk:
                    return
                other[end].sendall(chunk)
