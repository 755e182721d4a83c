"""The port the controller listens on."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from service.__main__ import bind_port
from service.settings import Settings


async def accept_one(listener: socket.socket) -> int:
    """Accept one connection as uvicorn does; return whether its short answers leave at once."""
    accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def on_connection(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        accepted.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async with await asyncio.start_server(on_connection, sock=listener):
        with socket.create_connection(listener.getsockname()):
            return await accepted


def test_answers_leave_without_waiting_for_an_acknowledgement(tmp_path: Path) -> None:
    with bind_port(Settings(home=tmp_path, port=0)) as listener:
        assert asyncio.run(accept_one(listener)) == 1
