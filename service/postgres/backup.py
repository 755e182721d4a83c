"""``python -m service.postgres.backup``: save the database to one file, or restore it.

Uses ``pg_dump`` and ``pg_restore`` while jobs run. The file holds no secret: the database stores
hashes of tokens, and the secret that signs machine labels is in the home directory.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from pydantic import ValidationError
from pydantic_settings import CliPositionalArg, SettingsConfigDict
from sqlalchemy import URL, create_engine, inspect, make_url
from sqlalchemy.exc import OperationalError

from service.db import controllers
from service.db.database import migrate
from service.errors import BackupFailed, ServiceError
from service.postgres.binaries import find_binaries
from service.postgres.server import EmbeddedPostgres, url_of_running
from service.settings import Settings, driver_url


class BackupCommand(Settings):
    """What is to be done, beside the controller's own settings.

    Attributes:
        action: Whether to write the file or to read it.
        file: The backup.
    """

    model_config = SettingsConfigDict(cli_prog_name="scavenger admin", populate_by_name=True)

    action: CliPositionalArg[Literal["backup", "restore"]]
    file: CliPositionalArg[Path]


def main() -> int:
    """Save or restore; returns the exit code."""
    logging.basicConfig(level=logging.WARNING)
    try:
        order = BackupCommand(_cli_parse_args=True)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in error.errors()]
        print("\n".join(["this cannot be done:", *problems]), file=sys.stderr)
        return 2
    try:
        print(execute(order))
    except ServiceError as error:
        print(error.headline, file=sys.stderr)
        return error.exit_code
    except OperationalError as error:
        print(f"the database does not answer: {error.orig}", file=sys.stderr)
        return 1
    return 0


def execute(order: BackupCommand) -> str:
    """Do what was ordered, and say what was done."""
    binaries, file = find_binaries(order.pg_bin), order.file.expanduser().absolute()
    if order.action == "restore" and not file.is_file():
        raise BackupFailed(f"there is no file {file}")
    with open_database(order) as url:
        if order.action == "backup":
            save(url, binaries, file)
            return f"saved {file.stat().st_size} bytes to {file}; keep a copy of the secret, too"
        restore(url, binaries, file)
    return (
        f"restored {file}; after the start look at `scavenger admin sweep`: machines launched "
        "since the backup run on until they are confirmed or their prepaid time ends"
    )


@contextmanager
def open_database(order: BackupCommand) -> Iterator[URL]:
    """Return where the database is; an embedded one that does not run is started meanwhile."""
    if order.database_url is not None:
        yield make_url(driver_url(order.database_url))
        return
    root = order.home / "postgres"
    if order.action == "backup":
        if not (root / "data").exists():
            raise BackupFailed(f"there is no database in {order.home}: name another with --home")
        running = url_of_running(root)
        if running is not None:
            yield make_url(running)
            return
    order.home.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
    with EmbeddedPostgres(root, order.pg_bin) as server:
        yield make_url(server.url())


def save(url: URL, binaries: Path, file: Path) -> None:
    """Write all of a database to a file, which appears whole or not at all.

    Raises:
        BackupFailed: The database or the file system refused; no file was written or replaced.
    """
    unfinished = file.with_name(f"{file.name}.new")
    try:
        os.close(os.open(unfinished, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600))
        run_postgres_program(binaries / "pg_dump", url, "--format=custom", f"--file={unfinished}")
        unfinished.replace(file)
    except OSError as error:
        raise BackupFailed(f"cannot write {file}: {error.strerror}") from error
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)


def restore(url: URL, binaries: Path, file: Path) -> None:
    """Read a file that ``save`` wrote into an empty database, all of it or nothing.

    Raises:
        BackupFailed: The database is not empty, or the file is no backup; nothing was changed.
    """
    engine = create_engine(url)
    try:
        if inspect(engine).get_table_names():
            raise BackupFailed(
                "this database is not empty, and a backup replaces nothing: restore into another "
                "with --home NEW or --database-url"
            )
        options = ("--single-transaction", "--exit-on-error", f"--dbname={url.database}")
        run_postgres_program(binaries / "pg_restore", url, *options, str(file))
        migrate(engine)  # an older controller may have saved it
        # All may have been lost but the backup: the next controller says where its machines are.
        with engine.begin() as connection:
            controllers.forget_accounts(connection)
    finally:
        engine.dispose()


def run_postgres_program(program: Path, url: URL, *arguments: str) -> None:
    """Run one of Postgres's programs; the password never stands in its arguments."""
    address = {
        "PGHOST": url.host,
        "PGPORT": url.port,
        "PGUSER": url.username,
        "PGPASSWORD": url.password,
        "PGDATABASE": url.database,
    }
    known = {name: str(value) for name, value in address.items() if value is not None}
    known |= {f"PG{name.upper()}": str(value) for name, value in url.query.items()}
    if not program.exists():
        raise BackupFailed(f"{program} is missing: install Postgres's client programs")
    done = subprocess.run(
        [str(program), "--no-owner", "--no-privileges", *arguments],
        env=os.environ | known,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BackupFailed(f"{program.name} failed: {done.stderr.strip()[-2000:]}")


if __name__ == "__main__":
    sys.exit(main())
