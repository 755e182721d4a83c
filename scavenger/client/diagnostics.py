"""Checks of ``scavenger doctor``: each judges one finding and names a remedy.

Pure: the command line and the controller collect the findings.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from scavenger.schemas import CheckView

DURABILITY_SETTINGS = ("fsync", "full_page_writes", "synchronous_commit")
OLDEST_POSTGRES = 15  # the oldest that migrations and tests were run on
TOLERATED_CLOCK_SKEW, LARGEST_CLOCK_SKEW = timedelta(seconds=1), timedelta(seconds=10)
LOW_DISK_BYTES, CRITICAL_DISK_BYTES = 5 << 30, 1 << 30
MAX_SWEEP_AGE = timedelta(minutes=3)


def passed_check(name: str, found: str) -> CheckView:
    """Return a check in which nothing is wrong."""
    return CheckView(name=name, state="ok", found=found)


def warning_check(name: str, found: str, remedy: str) -> CheckView:
    """Return a check whose finding somebody should look at."""
    return CheckView(name=name, state="warning", found=found, remedy=remedy)


def failed_check(name: str, found: str, remedy: str) -> CheckView:
    """Return a check whose finding must be put right."""
    return CheckView(name=name, state="failed", found=found, remedy=remedy)


def check_versions(here: str, there: str) -> CheckView:
    """Compare this program's version with its controller's."""
    if here == there:
        return passed_check("versions", f"{here} here and there")
    found = f"{here} here, {there} in the controller"
    return warning_check("versions", found, "install the same version in both places")


def check_clocks(name: str, skew: timedelta) -> CheckView:
    """Judge how far two clocks are apart; paid time and leases are told by them."""
    found = f"{abs(skew.total_seconds()):.1f} s apart"
    if abs(skew) <= TOLERATED_CLOCK_SKEW:
        return passed_check(name, found)
    remedy = "let both computers follow a time server (timedatectl set-ntp true)"
    return (warning_check if abs(skew) <= LARGEST_CLOCK_SKEW else failed_check)(name, found, remedy)


def check_disk(free: int) -> CheckView:
    """Judge the bytes that are free where a controller keeps its data."""
    found = f"{free / 2**30:.1f} GiB free"
    if free >= LOW_DISK_BYTES:
        return passed_check("disk", found)
    remedy = "make room where the controller keeps its data: a full disk stops its database"
    return (warning_check if free >= CRITICAL_DISK_BYTES else failed_check)("disk", found, remedy)


def check_permissions(modes: Mapping[str, int]) -> CheckView:
    """Judge the permission bits of files that hold secrets, and of the directory they lie in."""
    open_to_others = sorted(path for path, mode in modes.items() if mode & 0o066)
    if not open_to_others:
        return passed_check(
            "permissions", f"{len(modes)} files and directories are closed to others"
        )
    found = f"others may read or change {', '.join(open_to_others)}"
    return failed_check("permissions", found, f"chmod go-rw {' '.join(open_to_others)}")


def check_encryption(scheme: str, *, is_loopback: bool) -> CheckView:
    """Judge the way to a controller, on which the token travels."""
    if scheme == "https":
        return passed_check("connection", "encrypted")
    if is_loopback:
        return passed_check("connection", "does not leave this computer")
    found = "the token travels unencrypted"
    return failed_check(
        "connection", found, "put a proxy with TLS before the controller, and use https://"
    )


def check_postgres(version: int) -> CheckView:
    """Judge the database's version, as the number it gives itself, such as 150018."""
    found = f"Postgres {version // 10000}.{version % 10000}"
    if version // 10000 >= OLDEST_POSTGRES:
        return passed_check("database", found)
    return warning_check("database", found, f"use Postgres {OLDEST_POSTGRES} or newer")


def check_durability(settings: Mapping[str, str]) -> CheckView:
    """Judge whether what the database accepted survives a power failure."""
    lax = [
        f"{name} = {settings.get(name)}"
        for name in DURABILITY_SETTINGS
        if is_unsafe(settings.get(name))
    ]
    if not lax:
        return passed_check("durability", "what is stored survives a power failure")
    remedy = "set it on in postgresql.conf: machines would be forgotten that cost money"
    return failed_check("durability", ", ".join(lax), remedy)


def is_unsafe(value: str | None) -> bool:
    """Whether a setting lets go of what was accepted; replicas beyond the own disk do not."""
    return value not in ("on", "remote_write", "remote_apply")


def check_schema(found: str | None, newest: str | None) -> CheckView:
    """Compare the database's schema with the one its controller knows."""
    if found == newest:
        return passed_check("migrations", f"at {newest}")
    remedy = "run one version of the controller only; the newest brings the database up to date"
    return failed_check(
        "migrations", f"the database is at {found}, this controller knows {newest}", remedy
    )


def check_background_loops(alive: Mapping[str, bool]) -> CheckView:
    """Judge whether what goes round in a controller still does."""
    still = sorted(name for name, is_alive in alive.items() if not is_alive)
    if not still:
        return passed_check("loops", f"{' and '.join(sorted(alive))} go round")
    remedy = "read the controller's log; restart it if it says nothing"
    return failed_check("loops", f"{' and '.join(still)} stand still", remedy)


def check_cloud_sweeps(age: timedelta | None, shown: int, held: str | None) -> CheckView:
    """Judge the newest look at the cloud's machines.

    Args:
        age: How long ago it was; None before the first.
        shown: Machines of ours it saw.
        held: Why it holds machines back; None where it does not.
    """
    if age is None:
        return warning_check("cloud", "nobody has looked yet", "ask again in half a minute")
    if held is not None:
        return failed_check("cloud", f"machines are held back: {held}", "scavenger admin sweep")
    found = f"{shown} machines of ours, {age.total_seconds():.0f} s ago"
    if age <= MAX_SWEEP_AGE:
        return passed_check("cloud", found)
    remedy = "the cloud does not show its machines: read the controller's log"
    return failed_check("cloud", found, remedy)
