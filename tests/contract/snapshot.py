"""``python -m tests.contract.snapshot`` writes docs/openapi.json, what the API says of itself."""

from __future__ import annotations

import json
from pathlib import Path

from sqlalchemy import create_engine

from service.api.dependencies import AppState
from service.app import build_app
from service.clouds.storage import CheckpointStorage
from tests.contract.host import KEYS

SNAPSHOT = Path(__file__).parents[2] / "docs" / "openapi.json"


def described() -> str:
    """Return the description of the API; no database is asked."""
    engine = create_engine("postgresql+psycopg://nobody@localhost/none")
    app = build_app(AppState(engine, "local", CheckpointStorage(Path("/srv")), lambda: None), KEYS)
    return json.dumps(app.openapi(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    SNAPSHOT.write_text(described())
