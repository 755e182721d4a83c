"""Play: machines measure, everything between them and the disk is killed, and all is counted."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Engine, create_engine, func, make_url, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from service.db.database import migrate
from service.db.schema import workers
from service.postgres.server import EmbeddedPostgres
from tests.telemetry.controller import KEYS
from tests.telemetry.door import Door, Fault, Relay
from tests.telemetry.judge import Judgement, judge
from tests.telemetry.stage import free_port, set_up

JOBS = {"job_a": 2, "job_b": 1, "job_c": 1}
AMPLE = 64 << 20


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
        tight: Bytes that the spool of one machine may hold, which is too little.
        away: Seconds the database stays down, so that what is measured meanwhile must wait.
    """

    rows: int
    pace: float
    agents: int
    controllers: int
    databases: int
    share: float
    tight: int
    away: float


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
        stage = Stage(directory, script, seed)
        stack.callback(stage.end)
        return stage.play(stack)


@dataclass
class Stage:
    """All that runs, and who ends it."""

    directory: Path
    script: Script
    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    agents: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    port: int = field(default_factory=free_port)
    seen: int = 0

    def play(self, stack: ExitStack) -> Outcome:
        self.chance = random.Random(self.seed)
        strikes = self._strikes()
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
        self.door = Door(self.port, self.script.share, random.Random(self.seed))
        stack.enter_context(self.door)
        began = time.monotonic()
        for worker in self.names:
            self._start_agent(worker)
        total = self.script.rows * len(self.names)
        for place, strike in enumerate(strikes):
            self._wait_for(total * (place + 1) / (len(strikes) + 1))
            strike()
        while len(self.done) < len(self.names):
            self._tend()
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

    def _strikes(self) -> list[Callable[[], None]]:
        """Return all kills in a random order."""
        strikes = [
            *[self._kill_agent] * self.script.agents,
            *[self._kill_controller] * self.script.controllers,
            *[self._stop_database] * self.script.databases,
        ]
        self.chance.shuffle(strikes)
        return strikes

    def _kill_agent(self) -> None:
        running = [worker for worker in self.names if self.agents[worker].poll() is None]
        if running:
            self.agents[self.chance.choice(running)].kill()
            self.faults["agent killed"] += 1

    def _kill_controller(self) -> None:
        self.controller.kill()
        self.controller.wait()
        self._start_controller()
        self.faults["controller killed"] += 1

    def _stop_database(self) -> None:
        """Stop it as if the power had failed, and start it a while later."""
        pid = int((self.data / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGQUIT)
        time.sleep(self.script.away)
        self.postgres.stop()
        self.postgres.start()
        self.relay.target = self._database_port()
        self.faults["Postgres stopped"] += 1

    # What runs.

    @property
    def data(self) -> Path:
        """The database's directory."""
        return self.directory / "postgres" / "data"

    def _database_port(self) -> int:
        return make_url(self.postgres.url()).port or 0

    def _start_controller(self) -> None:
        command = [sys.executable, "-m", "tests.telemetry.controller", str(self.port), self.url]
        with (self.directory / "controller.log").open("ab") as log:
            self.controller = subprocess.Popen(command, stdout=log, stderr=log)

    def _start_agent(self, worker: str) -> None:
        limit = self.script.tight if worker == list(self.names)[-1] else AMPLE
        figures = (self.script.rows, self.script.pace, limit)
        environment = {
            "SCAVENGER_CONTROLLER": f"http://127.0.0.1:{self.door.port}",
            "SCAVENGER_TOKEN": KEYS.issue_worker_token(worker),
            "SCAVENGER_JOB": self.names[worker],
            "SCAVENGER_WORKER": worker,
            "SCAVENGER_PREPAID": "600",
            "SCAVENGER_SPOOL": str(self.directory / worker),
        }
        with (self.directory / "agents.log").open("ab") as log:
            self.agents[worker] = subprocess.Popen(
                [sys.executable, "-m", "tests.telemetry.producer", *map(str, figures)],
                env={**os.environ, **environment},
                stdout=log,
                stderr=log,
            )

    def _tend(self) -> None:
        """Start again what was killed, until it has ended well, as a service manager does."""
        if self.controller.poll() is not None:  # it found no database when it began
            self._start_controller()
        for worker, process in self.agents.items():
            if process.poll() is not None and worker not in self.done:
                if process.returncode == 0:
                    self.done.add(worker)
                else:
                    self._start_agent(worker)

    def _wait_for(self, rows: float) -> None:
        """Tend until so many rows have arrived or were given up, or all have."""
        while self._arrived() < rows and len(self.done) < len(self.names):
            self._tend()
            time.sleep(0.05)

    def _arrived(self) -> int:
        query = select(func.sum(workers.c.next_sequence))
        with suppress(DBAPIError), self.engine.connect() as connection:
            self.seen = int(connection.execute(query).scalar_one())
        return self.seen
