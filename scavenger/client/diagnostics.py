"""Checks of ``scavenger doctor``: each judges one finding and names a remedy.

Pure: the command line and the controller collect the findings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from scavenger.job.fields import format_duration
from scavenger.schemas.diagnostics import CheckView

DURABILITY_SETTINGS = ("fsync", "full_page_writes", "synchronous_commit")
OLDEST_POSTGRES = 15  # the oldest that migrations and tests were run on
TOLERATED_CLOCK_SKEW, MAX_WARNED_CLOCK_SKEW = timedelta(seconds=1), timedelta(seconds=10)
LOW_DISK_BYTES, CRITICAL_DISK_BYTES = 5 << 30, 1 << 30
MAX_SWEEP_AGE = timedelta(minutes=3)


def passed_check(name: str, found: str) -> CheckView:
    """Return a check that passed."""
    return CheckView(name=name, state="ok", found=found)


def warning_check(name: str, found: str, remedy: str) -> CheckView:
    """Return a check whose finding deserves attention."""
    return CheckView(name=name, state="warning", found=found, remedy=remedy)


def failed_check(name: str, found: str, remedy: str) -> CheckView:
    """Return a check whose finding must be corrected."""
    return CheckView(name=name, state="failed", found=found, remedy=remedy)


def check_versions(here: str, there: str) -> CheckView:
    """Compare this program's version with its controller's."""
    if here == there:
        return passed_check("versions", f"{here}, the same as the controller")
    found = f"{here} here, {there} in the controller"
    return warning_check("versions", found, "install the same version in both places")


def check_clocks(name: str, skew: timedelta) -> CheckView:
    """Check how far two clocks are apart; leases and paid time depend on them."""
    found = f"{abs(skew.total_seconds()):.1f} s apart"
    if abs(skew) <= TOLERATED_CLOCK_SKEW:
        return passed_check(name, found)
    remedy = "let both computers follow a time server (timedatectl set-ntp true)"
    return (warning_check if abs(skew) <= MAX_WARNED_CLOCK_SKEW else failed_check)(
        name, found, remedy
    )


def check_disk(free: int) -> CheckView:
    """Check the free bytes of the disk that a controller keeps its data on."""
    found = f"{free / 2**30:.1f} GiB free"
    if free >= LOW_DISK_BYTES:
        return passed_check("disk", found)
    remedy = "free disk space in the data directory: a full disk stops the database"
    return (warning_check if free >= CRITICAL_DISK_BYTES else failed_check)("disk", found, remedy)


def check_permissions(modes: Mapping[str, int]) -> CheckView:
    """Check the permission bits of files with secrets, and of their directory."""
    open_to_others = sorted(path for path, mode in modes.items() if mode & 0o066)
    if not open_to_others:
        return passed_check(
            "permissions", f"{len(modes)} files and directories are closed to others"
        )
    found = f"others may read or change {', '.join(open_to_others)}"
    return failed_check("permissions", found, f"chmod go-rw {' '.join(open_to_others)}")


def check_encryption(scheme: str, *, is_loopback: bool) -> CheckView:
    """Check that the token does not travel unencrypted."""
    if scheme == "https":
        return passed_check("connection", "encrypted")
    if is_loopback:
        return passed_check("connection", "does not leave this computer")
    found = "the token travels unencrypted"
    return failed_check(
        "connection", found, "put a proxy with TLS before the controller, and use https://"
    )


def check_postgres(version: int) -> CheckView:
    """Check the database's version number, such as 150018."""
    found = f"Postgres {version // 10000}.{version % 10000}"
    if version // 10000 >= OLDEST_POSTGRES:
        return passed_check("database", found)
    return warning_check("database", found, f"use Postgres {OLDEST_POSTGRES} or newer")


def check_durability(settings: Mapping[str, str]) -> CheckView:
    """Check that committed transactions survive a power failure."""
    lax = [
        f"{name} = {settings.get(name)}"
        for name in DURABILITY_SETTINGS
        # With the remote settings a replica has what this computer may lose.
        if settings.get(name) not in ("on", "remote_write", "remote_apply")
    ]
    if not lax:
        return passed_check("durability", "committed data survives a power failure")
    remedy = "set it to on in postgresql.conf: a lost commit can hide a machine that costs money"
    return failed_check("durability", ", ".join(lax), remedy)


def check_schema(found: str | None, newest: str | None) -> CheckView:
    """Compare the database's schema with the one that the controller knows."""
    if found == newest:
        return passed_check("migrations", f"at {newest}")
    remedy = "run one version of the controller only; the newest brings the database up to date"
    return failed_check(
        "migrations", f"the database is at {found}, this controller knows {newest}", remedy
    )


def check_background_loops(alive: Mapping[str, bool]) -> CheckView:
    """Check that the background loops of a controller are alive."""
    still = sorted(name for name, is_alive in alive.items() if not is_alive)
    if not still:
        return passed_check("loops", f"{' and '.join(sorted(alive))} are alive")
    remedy = "read the controller's log; restart it if it says nothing"
    return failed_check("loops", f"{' and '.join(still)} stopped", remedy)


def check_tensorflow_servers(jobs: Sequence[str]) -> CheckView:
    """Check whether unfinished jobs run servers of TensorFlow, which ask for no password.

    Args:
        jobs: Names of the jobs that do.
    """
    if not jobs:
        return passed_check("tensorflow", "no job runs a server of TensorFlow")
    found = f"servers of TensorFlow listen on all interfaces without a password: {', '.join(jobs)}"
    remedy = "let only the machines of a job reach each other: a private network, or a firewall"
    return warning_check("tensorflow", found, remedy)


def check_cloud_sweeps(age: timedelta | None, shown: int, held: str | None) -> CheckView:
    """Check the newest sweep of the cloud's machines.

    Args:
        age: Time since the sweep; None before the first one.
        shown: Machines of this installation that it found.
        held: Why it holds machines back; None where it does not.
    """
    if age is None:
        return warning_check("cloud", "no sweep yet", "ask again in half a minute")
    if held is not None:
        return failed_check("cloud", f"machines are held back: {held}", "scavenger admin sweep")
    since = format_duration(max(0, round(age.total_seconds())))
    found = f"{shown} machines of this installation, {since} ago"
    if age <= MAX_SWEEP_AGE:
        return passed_check("cloud", found)
    remedy = "the cloud's machines have not been listed lately: read the controller's log"
    return failed_check("cloud", found, remedy)
