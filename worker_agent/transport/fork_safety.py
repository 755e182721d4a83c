"""Closes the agent's sockets in processes that the training script forks.

Other workers notice a dead worker by its connections, which break, and by its store, which
refuses connections. A forked process, such as a data loader, has copies of these sockets and may
outlive the worker: then nothing breaks. So a forked process closes the agent's sockets at once,
and only those; the rest of it is the script's affair. A worker process of a DataLoader is also
killed with its parent, because it would hold memory and cores that a restart needs.

Nothing here takes a lock or calls an object of the agent in the fork, where other threads have
stopped at arbitrary points.
"""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import FrameType
from typing import Any

SocketDescriptor = tuple[int, int]  # its number, and the inode behind it: numbers are used again
Ports = tuple[int, int]  # ports of a connection, the own one first

PR_SET_PDEATHSIG = 1  # option of prctl(2): the signal this process gets when its parent dies
TCP_ESTABLISHED = "01"  # state of an open connection in /proc/net/tcp
DATA_LOADER_WORKER = "torch.utils.data._utils.worker"
PRUNE_ABOVE = 256

_registered: list[SocketDescriptor] = []


def close_in_forks(descriptor: int) -> None:
    """Let no process that this one starts from now on keep a descriptor."""
    with suppress(OSError):
        _registered.append((descriptor, os.fstat(descriptor).st_ino))
        os.set_inheritable(descriptor, False)  # nor one that runs another program
    if len(_registered) > PRUNE_ABOVE and len(_registered) & (len(_registered) - 1) == 0:
        _registered[:] = filter(
            is_unchanged, _registered
        )  # sees what other threads append meanwhile


def is_unchanged(descriptor: SocketDescriptor) -> bool:
    """Whether this still is what it was."""
    number, inode = descriptor
    with suppress(OSError):
        return os.fstat(number).st_ino == inode
    return False


def list_sockets() -> set[SocketDescriptor]:
    """Return all sockets of this process, whichever code opened them; none without procfs."""
    found = set()
    with suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                facts = os.fstat(int(name))
                if stat.S_ISSOCK(facts.st_mode):
                    found.add((int(name), facts.st_ino))
    return found


def tcp_connections(descriptors: Iterable[SocketDescriptor]) -> dict[Ports, SocketDescriptor]:
    """Return those that are TCP connections, by the ports at their ends.

    Reads what the kernel lists. A socket object for another's descriptor would change it: under
    ``socket.setdefaulttimeout`` it stops to block.
    """
    by_inode = {inode: (number, inode) for number, inode in descriptors}
    found = {}
    for table in ("tcp", "tcp6"):
        with suppress(OSError, ValueError), open(f"/proc/self/net/{table}") as lines:
            for line in lines:
                facts = line.split()
                if len(facts) < 10 or facts[3] != TCP_ESTABLISHED or int(facts[9]) not in by_inode:
                    continue
                own, other = (int(end.rpartition(":")[2], 16) for end in facts[1:3])
                found[own, other] = by_inode[int(facts[9])]
    return found


# In a fork.


def _close_sockets_in_fork() -> None:
    global _process, _main
    with suppress(OSError):
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor in filter(is_unchanged, _registered):
            # The number stays taken: the object it belongs to may still close it, in the fork.
            os.dup2(nothing, descriptor[0], inheritable=False)
        os.close(nothing)
    _registered.clear()
    # The signal comes when the thread ends that has forked: the main thread ends last.
    is_main, _main = threading.get_ident() == _main, threading.get_ident()
    parent, _process = _process, os.getpid()
    if is_main and _prctl is not None and is_data_loader_fork(sys._getframe(1)):
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before it could be asked for
            os.kill(_process, signal.SIGKILL)


def is_data_loader_fork(frame: FrameType | None) -> bool:
    """Whether the process that is being forked is a worker of PyTorch's DataLoader."""
    while frame is not None and frame.f_code.co_name != "_launch":
        frame = frame.f_back
    process = None if frame is None else frame.f_locals.get("process_obj")
    return getattr(getattr(process, "_target", None), "__module__", None) == DATA_LOADER_WORKER


def _load_prctl() -> Callable[..., Any] | None:
    """Return what lets a process die with its parent; None where the system does not know that."""
    if sys.platform != "linux":
        return None
    with suppress(OSError, AttributeError):
        function: Callable[..., Any] = ctypes.CDLL(None).prctl
        return function
    return None


_process, _main = os.getpid(), threading.main_thread().ident
_prctl = _load_prctl()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_sockets_in_fork)
