"""One controller of several: the one people run, but its machines are a fake cloud's.

Its arguments: home, port, the secret they share, the database, the cloud, and the address at which
machines reach any of them.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from service import __main__ as program
from service.clouds.clouds import Clouds
from service.observability.logs import start_logging
from service.observability.redaction import Redactor
from service.settings import Settings
from tests.fakecloud.provider import FakeCloudProvider

BOOT, LAG = 10.0, 1.0


def main(home: Path, port: int, secret: Path, database: str, cloud: str, front: str) -> None:
    """Serve until killed."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    redactor = Redactor()
    start_logging(redactor, "text", sys.stderr)
    home.mkdir(mode=0o700, exist_ok=True)
    settings = Settings(home=home, port=port, secret_file=secret, address=front)
    machines = FakeCloudProvider(cloud, "account", pause=1.0, lag=LAG, boot=BOOT)
    program.serve(settings, database, redactor, Clouds([machines]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
