"""Indefinite pronouns: words that hide who does a thing, in code and documentation."""

import re
import subprocess
from pathlib import Path

WORDS = ("nobody", "whoever", "somebody", "anybody", "everybody", "whatever")
CHECKED = (
    "scavenger/",
    "service/",
    "worker_agent/",
    "migrations/",
    "deploy/",
    "docs/",
    "README.md",
    "Makefile",
    "CONTRIBUTING.md",
    "NOTES.md",
    "tests/",
    # The words stand here by name.
    ":!tests/checks/prose.py",
)
ENDINGS = {".py", ".md", ".yaml", ".toml", ""}
# An underscore ends a word: names of tests are sentences, too.
_PATTERN = re.compile(rf"(?<![a-z])({'|'.join(WORDS)})('?s)?(?![a-z])", re.IGNORECASE)


def indefinite(root: Path) -> list[str]:
    """Return `file:line: word` for each indefinite pronoun in tracked text."""
    listed = subprocess.run(
        ["git", "ls-files", *CHECKED], cwd=root, capture_output=True, text=True, check=True
    )
    return [
        f"{name}:{number}: {found.group(1)}"
        for name in listed.stdout.splitlines()
        if Path(name).suffix in ENDINGS and (root / name).is_file()
        for number, line in enumerate((root / name).read_text().splitlines(), 1)
        for found in _PATTERN.finditer(line)
    ]
