"""Holds the namespaces of a lab, and makes sockets inside for the process outside.

A socket belongs to the network in which it was made, however far it is passed on. The standard
library alone is imported: this starts for every lab.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from threading import Thread

CLONE_NEWNET = 0x40000000


def listen(namespace: str, host: str, port: int) -> list[socket.socket]:
    """Return a listening socket, in a list, of a network namespace; of the lab's own for ''."""
    made = []

    def make() -> None:
        if namespace:
            with open(f"/run/netns/{namespace}") as file:
                # Of a process with threads, each thread has a network of its own.
                if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
        made.append(socket.create_server((host, port)))

    thread = Thread(target=make)
    thread.start()
    thread.join()
    return made


def main() -> None:
    """Answer requests until the process outside is gone."""
    with socket.socket(fileno=int(sys.argv[1])) as outside:
        outside.send(b"ready")
        while request := outside.recv(1000).decode():
            namespace, host, port = request.split(" ")
            sockets = listen(namespace, host, int(port))
            socket.send_fds(outside, [b"made"], [each.fileno() for each in sockets])
            for each in sockets:
                each.close()


if __name__ == "__main__":
    main()
    os._exit(0)
