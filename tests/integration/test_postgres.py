"""The embedded database starts, survives crashes, and touches nothing that is not its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import NullPool

from scavenger.client.diagnostics import OLDEST_POSTGRES
from service.db.database import MIGRATION_SCRIPTS, migrate
from service.errors import PostgresUnavailable
from service.postgres.binaries import system_binaries
from service.postgres.server import EmbeddedPostgres, find_binaries

AS_ROOT = os.geteuid() == 0
OWNER = """
import sys
from pathlib import Path
from service.postgres.server import EmbeddedPostgres
server = EmbeddedPostgres(Path(sys.argv[1])).start()
print(server.url(), flush=True)
sys.stdin.read()
"""
REVISION = """
from alembic import op
import sqlalchemy as sa
revision, down_revision = "0001", None
def upgrade():
    op.execute("SELECT pg_sleep(0.05)")
    op.create_table("fruit", sa.Column("name", sa.Text, primary_key=True))
"""


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    # pytest's own temporary directory is closed to the user a server of root's runs as.
    directory = Path(tempfile.mkdtemp(prefix="scavenger-test-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def root(place: Path) -> Path:
    """One database for all tests, so that it is made only once; between tests no server runs."""
    return place / "database"


def connect(server: EmbeddedPostgres) -> Engine:
    return create_engine(server.url(), poolclass=NullPool)


def ask(server: EmbeddedPostgres, question: str) -> object:
    with connect(server).begin() as connection:
        return connection.execute(text(question)).scalar()


def tell(server: EmbeddedPostgres, statement: str) -> None:
    with connect(server).begin() as connection:
        connection.execute(text(statement))


def postmaster(root: Path) -> int:
    return int((root / "data" / "postmaster.pid").read_text().split()[0])


def test_a_new_database_is_durable_checked_and_private(root: Path) -> None:
    with EmbeddedPostgres(root) as server:
        for setting in ("fsync", "synchronous_commit", "data_checksums"):
            assert ask(server, f"SHOW {setting}") == "on"
        assert ask(server, "SHOW listen_addresses") == "127.0.0.1"
        assert (
            ask(server, "SELECT count(*) FROM pg_hba_file_rules WHERE auth_method = 'trust'") == 0
        )
    for private in ("password", "lock", "postgres.log"):
        assert (root / private).stat().st_mode & 0o777 == 0o600
    for private in ("data", "run"):
        assert (root / private).stat().st_mode & 0o777 == 0o700
    assert not [*root.glob("*.new"), *root.glob("data.*")]


def test_a_restart_keeps_the_data(root: Path) -> None:
    with EmbeddedPostgres(root) as server:
        tell(server, "CREATE TABLE kept AS SELECT 42 AS answer")
        first = postmaster(root)
    assert not psutil.pid_exists(first)
    with EmbeddedPostgres(root) as server:
        assert ask(server, "SELECT answer FROM kept") == 42


def test_a_second_owner_is_refused_and_the_first_is_not_disturbed(root: Path) -> None:
    with EmbeddedPostgres(root) as server:
        with pytest.raises(PostgresUnavailable, match=f"in use by another.*pid {os.getpid()}"):
            EmbeddedPostgres(root).start()
        assert ask(server, "SELECT 1") == 1


def test_the_server_of_a_killed_controller_is_replaced(root: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as owner:
        assert owner.stdout
        engine = create_engine(owner.stdout.readline().strip(), poolclass=NullPool)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE survivor AS SELECT 7 AS answer"))
        owner.kill()
    orphan = psutil.Process(postmaster(root))
    assert orphan.is_running()
    with EmbeddedPostgres(root) as server:
        assert ask(server, "SELECT answer FROM survivor") == 7
        assert postmaster(root) != orphan.pid
    assert not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE


def test_a_killed_server_recovers_and_a_stranger_with_its_pid_is_left_alone(
    root: Path, place: Path
) -> None:
    with EmbeddedPostgres(root) as server:
        tell(server, "CREATE TABLE recovered AS SELECT 9 AS answer")
        os.kill(postmaster(root), signal.SIGKILL)
    pid_file = root / "data" / "postmaster.pid"
    # The hardest kind: of the same name and the same user, so only its data can tell.
    namesake = Path(shutil.copy(str(shutil.which("sleep")), place / "postgres"))
    with subprocess.Popen([namesake, "60"], user=pid_file.stat().st_uid) as stranger:
        dead, rest = pid_file.read_text().split("\n", 1)
        assert int(dead) != stranger.pid
        pid_file.write_text(f"{stranger.pid}\n{rest}")
        with EmbeddedPostgres(root) as server:
            assert ask(server, "SELECT answer FROM recovered") == 9
        assert stranger.poll() is None
        stranger.kill()


def test_an_empty_pid_file_left_by_a_power_failure_is_forgotten(root: Path) -> None:
    (root / "data" / "postmaster.pid").touch()
    with EmbeddedPostgres(root) as server:
        assert ask(server, "SELECT 1") == 1


def test_a_server_that_cannot_start_says_why_and_can_be_started_later(root: Path) -> None:
    version = root / "data" / "PG_VERSION"
    content = version.read_text()
    version.write_text("9.6\n")
    with pytest.raises(PostgresUnavailable, match=r"initialized by PostgreSQL version 9\.6"):
        EmbeddedPostgres(root).start()
    version.write_text(content)
    with EmbeddedPostgres(root) as server:
        assert ask(server, "SELECT 1") == 1


def test_a_database_that_does_not_run_has_no_url(root: Path) -> None:
    server = EmbeddedPostgres(root)
    server.stop()
    with pytest.raises(ValueError, match="not running"):
        server.url()


def test_the_newest_of_the_system_is_taken_and_none_that_is_too_old(tmp_path: Path) -> None:
    for version in (OLDEST_POSTGRES - 1, OLDEST_POSTGRES, OLDEST_POSTGRES + 2):
        (tmp_path / str(version) / "bin").mkdir(parents=True)
    found = [int(path.parent.name) for path in system_binaries(tmp_path)]
    assert found == [OLDEST_POSTGRES + 2, OLDEST_POSTGRES]


def test_missing_binaries_are_named(tmp_path: Path) -> None:
    with pytest.raises(PostgresUnavailable, match=str(tmp_path)):
        find_binaries(tmp_path)


@pytest.mark.skipif(not AS_ROOT, reason="only root changes its user")
def test_binaries_hidden_in_a_private_directory_are_copied_once(root: Path, place: Path) -> None:
    original = find_binaries(None)
    package = original.parent.parent
    hidden = place / "hidden"
    hidden.mkdir(mode=0o700)
    shutil.copytree(original.parent, hidden / package.name / original.parent.name)
    shutil.copytree(package.with_name(f"{package.name}.libs"), hidden / f"{package.name}.libs")
    binaries = hidden / package.name / original.parent.name / "bin"
    with EmbeddedPostgres(root, binaries) as server:
        assert ask(server, "SELECT 1") == 1
    copied = (root / "install").stat().st_ino
    with EmbeddedPostgres(root, binaries):
        assert (root / "install").stat().st_ino == copied


@pytest.mark.skipif(not AS_ROOT, reason="only root changes its user")
def test_a_root_its_user_cannot_reach_is_refused_by_name(place: Path) -> None:
    private = place / "private"
    private.mkdir(mode=0o700)
    with pytest.raises(PostgresUnavailable, match=f"may not enter {private}"):
        EmbeddedPostgres(private / "database").start()


def test_controllers_that_start_together_migrate_once(root: Path, tmp_path: Path) -> None:
    (tmp_path / "versions").mkdir()
    (tmp_path / "versions" / "0001_first.py").write_text(REVISION)
    shutil.copy(MIGRATION_SCRIPTS / "env.py", tmp_path)
    with EmbeddedPostgres(root) as server, ThreadPoolExecutor(4) as controllers:
        engines = [connect(server) for _ in range(4)]
        list(controllers.map(migrate, engines, [tmp_path] * 4))
        assert ask(server, "SELECT count(*) FROM fruit") == 0
        assert ask(server, "SELECT version_num FROM alembic_version") == "0001"
