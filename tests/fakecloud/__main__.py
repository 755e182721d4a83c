"""``python -m tests.fakecloud --port-file <file>``: a cloud in a process of its own."""

from __future__ import annotations

import argparse
from pathlib import Path

from pydantic import TypeAdapter

from tests.fakecloud.clock import RealClock, VirtualClock
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.server import CloudServer
from tests.fakecloud.settings import Settings


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fakecloud")
    parser.add_argument("--port-file", type=Path, required=True, help="its port is written there")
    parser.add_argument("--settings", default="{}", help="fields of Settings, as JSON")
    parser.add_argument("--real-time", action="store_true", help="time passes by itself")
    options = parser.parse_args()
    settings = TypeAdapter(Settings).validate_json(options.settings)
    server = CloudServer(FakeCloud(RealClock() if options.real_time else VirtualClock(), settings))
    draft = options.port_file.with_suffix(".new")
    draft.write_text(str(server.port))
    draft.rename(options.port_file)  # so no reader sees half a number
    server.serve()


if __name__ == "__main__":
    main()
