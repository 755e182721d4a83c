"""Play: jobs come in, train and end, while what acts for them is killed and started again."""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import Engine, create_engine, func, make_url, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from scavenger.schemas.jobs import JobPhase
from service.db.database import migrate
from service.db.schema import outcomes, vms
from service.postgres.server import EmbeddedPostgres
from tests.builders import document
from tests.fakecloud.clock import RealClock
from tests.fakecloud.server import CloudServer
from tests.fakecloud.settings import Settings
from tests.replicas.follower import Follower
from tests.replicas.front import Front
from tests.replicas.judge import judge
from tests.replicas.machines import Cloud, Machines
from tests.replicas.replica import Replica
from tests.telemetry.door import Relay
from tests.telemetry.stage import free_port

SECRET = "one secret that all of these controllers share"
KILLED, FROZEN = "controller killed", "controller frozen for longer than its leases"
UNHEARD = "answer to a person lost, and the same asked again"
FAST, IMMEDIATE = "Postgres stopped, fast", "Postgres stopped, immediately"
SIGNALS = {IMMEDIATE: signal.SIGQUIT, FAST: signal.SIGINT}
LOSSES = 0.3
AWAY, FREEZE = (1.0, 3.0), (6.0, 12.0)


@dataclass(frozen=True, slots=True)
class Script:
    """What is played.

    Attributes:
        replicas: Controllers that run at once.
        jobs: Jobs that come in one after the other.
        kills: How often a controller is killed.
        freezes: How often one stops as if its computer slept, and goes on as if nothing had been.
        span: Seconds over which jobs come in and controllers are killed.
        gaps: Fewest and most seconds between two restarts of Postgres.
        rounds: Reports a job trains for.
        pause: Seconds between two reports of a machine.
        kinds: What has to happen.
        patience: Seconds after ``span`` in which all must have ended.
    """

    replicas: int
    jobs: int
    kills: int
    freezes: int
    span: float
    gaps: tuple[float, float]
    rounds: int
    pause: float
    kinds: tuple[str, ...] = (KILLED, FROZEN, UNHEARD, IMMEDIATE, FAST)
    patience: float = 240.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it.

    Attributes:
        faults: What happened how often.
        machines: Launched by all jobs.
        seconds: How long it took.
        wrong: What should not be.
        unheard: How often a machine heard no answer.
        lines: What controllers complained of, by the words it ends with.
    """

    faults: Counter[str]
    machines: int
    seconds: float
    wrong: list[str]
    unheard: int
    lines: Counter[str]


def play(script: Script, seed: int) -> Outcome:
    """Play a script to its end, and judge."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        directory.chmod(0o755)
        return Stage(directory, script, random.Random(seed)).play(stack)


@dataclass
class Stage:
    """All that runs, and who ends it."""

    directory: Path
    script: Script
    chance: random.Random
    faults: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    wanted: dict[str, int] = field(default_factory=dict)

    def play(self, stack: ExitStack) -> Outcome:
        self._open(stack)
        while not self._is_up():
            self._tend()
            time.sleep(0.05)
        self.follower.start()
        began = time.monotonic()
        for at, what in sorted(self._program(), key=lambda pair: pair[0]):
            while time.monotonic() - began < at:
                self._tend()
                time.sleep(0.05)
            what()
        deadline = began + self.script.span + self.script.patience
        while not self._is_over() and time.monotonic() < deadline:
            self._tend()
            time.sleep(0.05)
        seconds = time.monotonic() - began
        self.machines.stop()
        self.follower.stop()
        with self.engine.connect() as connection:
            self.wrong += judge(connection, self.cloud, self.wanted, self.machines.rows)
        self.wrong += self.follower.judge()
        self.wrong += self.machines.wrong
        self.wrong += [f"never happened: {k}" for k in self.script.kinds if not self.faults[k]]
        made = len(self.cloud.machines())
        lines = Counter(line for replica in self.replicas for line in replica.complaints())
        return Outcome(self.faults, made, seconds, self.wrong, self.machines.unheard, lines)

    # What runs.

    def _open(self, stack: ExitStack) -> None:
        script = self.script
        self.postgres = stack.enter_context(EmbeddedPostgres(self.directory / "postgres"))
        self.relay = stack.enter_context(Relay(self._database_port()))
        password = (self.directory / "postgres" / "password").read_text()
        url = f"postgresql+psycopg://scavenger:{password}@127.0.0.1:{self.relay.port}/postgres"
        self.engine: Engine = create_engine(url, poolclass=NullPool)
        migrate(self.engine)
        settings = Settings(boot=0.5, ending=0.5, list_lag=0.5, lateness=1.0)
        self.cloud = Cloud(RealClock(), settings)
        cloud = stack.enter_context(CloudServer(self.cloud))
        self.machines = Machines(self.cloud, script.rounds, script.pause)
        stack.callback(self.machines.stop)
        ports = [free_port() for _ in range(script.replicas)]
        self.front = stack.enter_context(Front(ports, random.Random(self.chance.random())))
        (self.directory / "secret").write_text(SECRET)
        self.replicas = [
            self._replica(number, port, url, cloud) for number, port in enumerate(ports)
        ]
        for replica in self.replicas:
            stack.callback(replica.kill)
        chance = random.Random(self.chance.random())
        self.follower = Follower(self.wanted, self._ask, self.engine, chance)
        stack.callback(self.follower.stop)

    def _replica(self, number: int, port: int, url: str, cloud: CloudServer) -> Replica:
        home = self.directory / f"home-{number}"
        words = (home, port, self.directory / "secret", url, cloud.url, self.front_url)
        command = [sys.executable, "-m", "tests.replicas.controller", *map(str, words)]
        return Replica(command, self.directory / f"controller-{number}.log")

    @property
    def front_url(self) -> str:
        """Where any controller answers."""
        return f"http://127.0.0.1:{self.front.port}"

    def _database_port(self) -> int:
        return make_url(self.postgres.url()).port or 0

    def _is_up(self) -> bool:
        try:
            return all(
                httpx.get(f"http://127.0.0.1:{port}/readyz").is_success
                for port in self.front.targets
            )
        except httpx.TransportError:
            return False

    def _tend(self) -> None:
        """Start what has booted, and what was killed or has ended by itself."""
        self.machines.tend()
        for replica in self.replicas:
            if replica.thaws_at is not None and replica.thaws_at <= time.monotonic():
                replica.thaw()
            if replica.has_ended:
                self.faults["controller that could not start, and was started again"] += 1
                replica.back_at = time.monotonic() + 1.0
            if replica.back_at is not None and replica.back_at <= time.monotonic():
                replica.start()

    # What happens.

    def _program(self) -> Iterator[tuple[float, Callable[[], None]]]:
        """Yield what happens, and when."""
        script, chance = self.script, self.chance
        for number in range(script.jobs):
            yield script.span * number / script.jobs, self._submission(number)
        for _ in range(script.kills):
            yield chance.uniform(0, script.span), self._kill
        for _ in range(script.freezes):
            yield chance.uniform(0, script.span), self._freeze
        at = chance.uniform(*script.gaps)
        for number in range(int(script.span / script.gaps[0]) + 1):
            if at < script.span:
                kind = (IMMEDIATE, FAST)[number % 2]
                yield at, self._restart(kind)
            at += chance.uniform(*script.gaps)

    def _kill(self) -> None:
        running = [replica for replica in self.replicas if replica.back_at is None]
        if running:
            replica = self.chance.choice(running)
            replica.kill()
            replica.back_at = time.monotonic() + self.chance.uniform(*AWAY)
            self.faults[KILLED] += 1

    def _freeze(self) -> None:
        awake = [one for one in self.replicas if one.back_at is None and one.thaws_at is None]
        if awake:
            self.chance.choice(awake).freeze(self.chance.uniform(*FREEZE))
            self.faults[FROZEN] += 1

    def _restart(self, kind: str) -> Callable[[], None]:
        def restart() -> None:
            pid = int((self.directory / "postgres/data/postmaster.pid").read_text().split()[0])
            os.kill(pid, SIGNALS[kind])
            self.postgres.stop()
            self.postgres.start()
            self.relay.target = self._database_port()
            self.faults[kind] += 1

        return restart

    def _submission(self, number: int) -> Callable[[], None]:
        workers = 1 + number % 3
        body = document(
            name=f"job-{number}",
            model={"key": f"model-{number}", "dataset_size": 1437},
            limits={"max_cost": "2 USD", "workers": f"{workers}..{workers}", "batch": [96]},
            price="0.5 USD/h",
        )

        def submit() -> None:
            answer = self._post(body, f"key-{number}")
            self.wanted[str(answer["id"])] = workers

        return submit

    def _ask(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.front_url}{path}", headers=self._headers(), timeout=5)

    def _headers(self) -> dict[str, str]:
        token = (self.directory / "home-0" / "token").read_text()
        return {"Authorization": f"Bearer {token}"}

    def _post(self, body: dict[str, Any], key: str) -> dict[str, Any]:
        """Submit a job as one does who gets no answer: again, with the same key."""
        headers = {**self._headers(), "Idempotency-Key": key}
        url = f"{self.front_url}/v1/jobs"
        while True:
            with suppress(httpx.TransportError):
                answer = httpx.post(url, json=body, headers=headers, timeout=5)
                if answer.status_code == 201 and self.chance.random() < LOSSES:
                    self.faults[UNHEARD] += 1
                elif answer.status_code == 201:
                    return dict(answer.json())
                elif answer.status_code not in (409, 503):
                    raise AssertionError(f"{key}: {answer.status_code} {answer.text}")
            self._tend()
            time.sleep(0.2)

    def _is_over(self) -> bool:
        """Whether all jobs are, and all their machines, as far as the controllers know."""
        final = [phase for phase in JobPhase if phase.is_final]
        open_jobs = select(func.count()).where(outcomes.c.phase.not_in(final))
        alive = select(func.count()).where(vms.c.state != "gone")
        with suppress(DBAPIError), self.engine.connect() as connection:
            return not any(connection.execute(one).scalar_one() for one in (open_jobs, alive))
        return False
