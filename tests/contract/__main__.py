"""``python -m tests.contract``: examines a controller as thoroughly as is asked."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from sqlalchemy import create_engine

from service.db.database import migrate
from service.postgres.server import EmbeddedPostgres
from tests.contract.examine import examine
from tests.contract.host import host


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options, rest = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        with EmbeddedPostgres(directory / "postgres") as postgres:
            engine = create_engine(postgres.url(), pool_size=10, max_overflow=20)
            migrate(engine)
            with host(engine) as controller:
                numbers = ("--max-examples", str(options.examples), "--seed", str(options.seed))
                examined = examine(controller, directory, *numbers, *rest)
            engine.dispose()
    print(examined.stdout)
    return examined.returncode


if __name__ == "__main__":
    sys.exit(main())
