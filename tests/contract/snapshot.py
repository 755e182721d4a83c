"""``python -m tests.contract.snapshot`` writes docs/openapi.json, what the API says of itself."""

from __future__ import annotations

import json
from pathlib import Path

from tests.contract.host import unconnected

SNAPSHOT = Path(__file__).parents[2] / "docs" / "openapi.json"


def described() -> str:
    """Return the description of the API; no database is asked."""
    return json.dumps(unconnected().openapi(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    SNAPSHOT.write_text(described())
