"""One process of a controller's API on a database; who measures needs no reconciler.

Its arguments: port, and the database's URL.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import uvicorn
from sqlalchemy import create_engine

from service.__main__ import freeze_loaded_objects
from service.api.dependencies import AppState
from service.app import build_app
from service.auth.tokens import ControllerKeys
from service.clouds.storage import CheckpointStorage
from tests.builders import HERE

KEYS = ControllerKeys(home_token="scv_token", secret="s" * 48)


def main(port: int, url: str) -> None:
    """Serve until killed."""
    engine = create_engine(url, pool_size=10, max_overflow=20, pool_pre_ping=True)
    world = AppState(engine, HERE, CheckpointStorage(Path("/srv/scavenger")))
    app = build_app(world, KEYS)
    freeze_loaded_objects()
    uvicorn.run(app, port=port, log_level="warning")


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    main(int(sys.argv[1]), sys.argv[2])
