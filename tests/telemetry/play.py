"""Play: machines measure, everything between them and the disk is killed, and all is counted."""

from __future__ import annotations

import random
import subprocess
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Engine, create_engine
from sqlalchemy.pool import NullPool

from service.db.migrate import migrate
from service.postgres import EmbeddedPostgres
from tests.telemetry.door import Door, Fault, Relay
from tests.telemetry.judge import Judgement, judge
from tests.telemetry.stage import set_up

JOBS = {"job_a": 2, "job_b": 1, "job_c": 1}
AMPLE, TIGHT = 64 << 20, 300_000
AWAY = 2.0  # seconds the database stays down, so that what is measured meanwhile must wait


@dataclass(frozen=True, slots=True)
class Script:
    """What is played.

    Attributes:
        rows: Iterations of each machine.
        pace: Iterations a second of each.
        agents: How often a machine's process is killed.
        controllers: How often the controller is.
        databases: How often Postgres is stopped immediately.
        share: Of the requests that meet a fault of the network.
    """

    rows: int
    pace: float
    agents: int
    controllers: int
    databases: int
    share: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it.

    Attributes:
        judgements: By job.
        faults: What happened how often.
        seconds: How long the rows took.
    """

    judgements: dict[str, Judgement]
    faults: Counter[str]
    seconds: float

    @property
    def stored(self) -> int:
        """Rows that are stored."""
        return sum(judgement.stored for judgement in self.judgements.values())

    @property
    def dropped(self) -> int:
        """Rows that were given up and counted."""
        return sum(judgement.dropped for judgement in self.judgements.values())

    @property
    def wrong(self) -> list[str]:
        """What should not be; a fault that never struck proves nothing, and is wrong too."""
        found = [word for judgement in self.judgements.values() for word in judgement.wrong]
        kinds = [*Fault, "agent killed", "controller killed", "Postgres stopped", "rows dropped"]
        return found + [f"never struck: {kind}" for kind in kinds if not self.faults[kind]]


def play(script: Script, seed: int) -> Outcome:
    """Play a script to its end, and judge."""
    with ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory())
        directory = Path(place)
        directory.chmod(0o755)
        stage = Stage(directory, script, random.Random(seed))
        stack.callback(stage.end)
        return stage.play(stack)


@dataclass
class Stage:
    """All that runs, and who ends it."""

    directory: Path
    script: Script
    chance: random.Random
    faults: Counter[str] = field(default_factory=Counter)
    agents: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    is_over: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def play(self, stack: ExitStack) -> Outcome:
        self.postgres = EmbeddedPostgres(self.directory / "postgres").start()
        self.relay = Relay(self._database_port())
        stack.enter_context(self.relay)
        password = (self.directory / "postgres" / "password").read_text()
        self.url = f"postgresql+psycopg://scavenger:{password}@127.0.0.1:{self.relay.port}/postgres"
        self.engine: Engine = create_engine(self.url, poolclass=NullPool)
        migrate(self.engine)
        with self.engine.begin() as connection:
            self.names = {
                worker: job
                for job, number in JOBS.items()
                for worker in set_up(connection, job, number)
            }
        self._start_controller()
        self.door = Door(self.port, self.script.share, self.chance)
        stack.enter_context(self.door)
        began = time.monotonic()
        for worker in self.names:
            self._start_agent(worker)
        for strike in self._strikes():
            strike()
        while not self._is_done():
            time.sleep(0.05)
        seconds = time.monotonic() - began
        with self.engine.connect() as connection:
            judged = {job: judge(connection, job, self.script.rows) for job in JOBS}
        self.faults.update({str(kind): n for kind, n in self.door.faults.items()})
        self.faults["rows dropped"] += sum(judgement.dropped for judgement in judged.values())
        return Outcome(judged, self.faults, seconds)

    def end(self) -> None:
        """End all that runs."""
        for process in [*self.agents.values(), self.controller]:
            process.kill()
            process.wait()
        self.postgres.stop()

    # Faults, spread over the work.

    def _strikes(self) -> list[object]:
        raise NotImplementedError
