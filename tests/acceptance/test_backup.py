"""What a controller knew is saved while it runs, and another goes on from there."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scavenger.schemas.jobs import JobPhase
from tests.acceptance.test_digits_job import digits
from tests.controller import Controller

FAILS = {"command": [sys.executable, "-c", "raise SystemExit('the data is missing')"]}


def admin(*words: object) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).parent / "scavenger", "admin", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="module")
def place(open_directory: Path) -> Path:
    directory = open_directory / "backup"
    directory.mkdir(mode=0o755)
    return directory


@pytest.mark.slow
def test_a_backup_is_taken_while_jobs_run_and_restored_elsewhere(place: Path) -> None:
    file = place / "scavenger.dump"
    with Controller(place / "old" / "home") as old:
        kept = old.submit(digits(run=FAILS))
        old.finished(kept)
        old.wait(lambda: "vm_gone" in old.ask("GET", f"/v1/jobs/{kept}/events").text)
        view, told = old.job(kept), old.events(kept)  # its cost is final, too
        saved = admin("backup", file, "--home", old.home)
        assert saved.returncode == 0, saved.stderr
        assert f"to {file}" in saved.stdout
        assert file.stat().st_mode & 0o077 == 0
        later = old.submit(digits(run=FAILS))
        old.finished(later)
        refused = admin("restore", file, "--home", old.home)
        assert "is in use by another controller" in refused.stderr
    refused = admin("restore", file, "--home", old.home)
    assert refused.returncode == 1
    assert "this database is not empty" in refused.stderr
    home = place / "new" / "home"
    restored = admin("restore", file, "--home", home)
    assert restored.returncode == 0, restored.stderr
    shutil.copy(old.home / "secret", home / "secret")
    with Controller(home) as new:
        assert new.job(kept).model_dump(exclude={"checkpoints"}) == view.model_dump(
            exclude={"checkpoints"}
        )
        assert new.ask("GET", f"/v1/jobs/{later}").status_code == 404
        assert new.events(kept) == told
        another = new.submit(digits(run=FAILS))
        assert new.finished(another).phase is JobPhase.FAILED
        assert new.events(another)[0].sequence > told[-1].sequence


@pytest.mark.parametrize(
    ("content", "code", "why"),
    [(None, 2, "does not exist"), ("no backup", 1, "does not appear to be a valid archive")],
)
def test_what_cannot_be_restored_is_refused_and_nothing_is_stored(
    place: Path, content: str | None, code: int, why: str
) -> None:
    file = place / "wrong.dump"
    if content is not None:
        file.write_text(content)
    refused = admin("restore", file, "--home", place / "wrong" / "home")
    assert (refused.returncode, refused.stdout) == (code, "")
    assert why in refused.stderr


def test_a_backup_of_nothing_and_into_nowhere_is_refused(place: Path) -> None:
    refused = admin("backup", place / "x.dump", "--home", place / "missing")
    assert refused.returncode == 1
    assert "name another with --home" in refused.stderr
    assert not (place / "x.dump").exists()
