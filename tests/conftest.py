"""One real Postgres for all tests, and a fresh database for each that asks."""

from __future__ import annotations

import gc
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy import Connection, Dialect, Engine, create_engine, text
from sqlalchemy.pool import NullPool
from sqlalchemy.util import LRUCache

from service.db.database import migrate
from service.postgres.server import SERVER_SETTINGS, EmbeddedPostgres
from tests.databases import DatabasePool

# Collecting tests imports a million objects that stay: looking for garbage among them again and
# again takes a third of the time.
gc.disable()

# How long an example takes says how busy the computer is, and nothing else.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("unhurried", unhurried)
# `make test` draws the same inputs each time, so that it fails only for what has changed. More of
# the same would find nothing new: `make laws` draws others.
settings.register_profile("repeatable", unhurried, derandomize=True, max_examples=10)
settings.load_profile("unhurried")

COMPILED: LRUCache[Any, Any] = LRUCache(2000)  # statements of all tests of a process


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let the collector pass over what collecting has left, and look for garbage again."""
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Let PyTorch compute on one thread: others spin while they wait, longest where it is busy."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def open_directory() -> Iterator[Path]:
    """A directory that the database's user may enter; pytest's own is closed to it."""
    directory = Path(tempfile.mkdtemp(prefix="scavenger-tests-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def postgres(open_directory: Path) -> Iterator[EmbeddedPostgres]:
    """A server with a migrated database named ``template``.

    It does not wait for its disk: making a database would take twice as long, and no test of those
    that share it kills it. Tests that do start their own.
    """
    hasty = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
    server = EmbeddedPostgres(open_directory / "postgres")
    with patch.dict(SERVER_SETTINGS, hasty):
        server.start()
    run(server, "CREATE DATABASE template")
    engine = create_engine(server.url("template"), poolclass=NullPool)
    migrate(engine)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def admin(postgres: EmbeddedPostgres) -> Iterator[Connection]:
    """One connection that makes and drops databases, since a login takes as long as a test."""
    engine = create_engine(postgres.url(), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@pytest.fixture(scope="session")
def databases(postgres: EmbeddedPostgres, admin: Connection) -> DatabasePool:
    return DatabasePool(admin, postgres.url)


@pytest.fixture(scope="session")
def dialect(postgres: EmbeddedPostgres) -> Dialect:
    """How statements are written for the server."""
    engine = create_engine(postgres.url(), poolclass=NullPool)
    with engine.connect():
        return engine.dialect


@pytest.fixture
def engine(
    postgres: EmbeddedPostgres, databases: DatabasePool, dialect: Dialect
) -> Iterator[Engine]:
    """A fresh database with the schema in it.

    Compiling statements anew would take a seventh of the time of a test.
    """
    name = databases.take()
    engine = create_engine(postgres.url(name))
    engine.dialect = dialect  # compiled statements are found by it
    engine.update_execution_options(compiled_cache=COMPILED)
    yield engine
    engine.dispose()
    databases.give_back(name)


def run(server: EmbeddedPostgres, command: str) -> None:
    """Run a command that no transaction may contain."""
    engine = create_engine(server.url(), poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(command))
