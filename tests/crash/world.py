"""World: the cloud, the machines' agents, the user and the time, which outlive every controller."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid5

from pydantic import validate_call
from pydantic_core import to_json
from sqlalchemy import Connection, Engine, text

from scavenger.schemas import EventView
from service.clouds.labels import ResourceLabels
from service.db import controllers, jobs, schema, sweeps, vms
from service.db.jobs import StoredJob
from service.db.vms import Vm
from tests.builders import NOW
from tests.crash.agents import Agents
from tests.crash.controller import ACCOUNT, SECRET
from tests.crash.scenario import Scenario
from tests.crash.virtual_time import set_clock
from tests.fakecloud.bill import Bill, Tariff
from tests.fakecloud.clock import VirtualClock
from tests.fakecloud.cloud import FakeCloud, Truth
from tests.fakecloud.http_server import Answer
from tests.fakecloud.machine import Request, State
from tests.fakecloud.provider import INSTALLATION, JOB, KEY
from tests.fakecloud.refusal import ConnectionLost
from tests.fakecloud.server import answer
from tests.fakecloud.settings import Settings

JOB_ID, BOOT, ENDING = "job_1", 2.0, 2.0
SPARE = 8.0  # seconds a launch may take to arrive, as the provider promises
CANCELS_AT, TRAINED = 2.0, 4.0
TABLES = tuple(table.name for table in schema.metadata.sorted_tables)
UNSEEN = timedelta(seconds=30)
SAME = ("installations", "audit")  # what no controller may forget, either
TOKEN = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}")
ALIVE = (State.PENDING, State.RUNNING)


@dataclass
class World:
    """Everything but the controller.

    Attributes:
        patience: When the world ends, in seconds of its own; the story should have, long before.
        complaints: What controllers logged as an error.
    """

    engine: Engine
    scenario: Scenario
    patience: float
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.spec, self.clock = self.scenario.spec(), VirtualClock()
        self.cloud = FakeCloud(
            self.clock,
            Settings(
                seed=1,
                tariffs={"small": Tariff(float(self.spec.price_per_hour))},
                boot=BOOT,
                ending=ENDING,
                list_lag=self.scenario.lag,
                lateness=0.0,
                capacity=self.scenario.capacity,
            ),
        )
        asked = (self.cloud.launch, self.cloud.list, self.cloud.terminate)
        self._doors = {f"/cloud/{do.__name__}": validate_call(do) for do in asked}
        for operation, fault, number in self.scenario.faults:
            key = (
                None
                if number is None
                else str(uuid5(vms.LAUNCH_KEY_NAMESPACE, f"{JOB_ID}/{number}"))
            )
            self.cloud.faults.next(operation, fault, key)
        self.agents = Agents(self.cloud, self.scenario, JOB_ID)
        self.orphans: list[str] = []
        self.foreign: list[str] = []
        self._waves = list(self.scenario.orphans)
        with self.engine.begin() as connection:
            connection.execute(text(FORGET))
            set_clock(connection, self.now)
            jobs.create(connection, JOB_ID, self.spec, self.now)

    @property
    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.clock.now())

    @property
    def unseen(self) -> timedelta:
        """Most that a machine may be booked beyond its life."""
        return UNSEEN + timedelta(seconds=self.scenario.lag)

    @property
    def arguments(self) -> tuple[datetime, float, float]:
        """What a controller has to know to begin."""
        return self.now, self.scenario.lag, BOOT + SPARE

    def answer(self, path: str, body: bytes) -> Answer | None:
        """Answer a controller; None breaks the connection."""
        if path == "/nap":
            return 200, "application/json", to_json(self._pass_time())
        try:
            return answer(self._doors, path, body)
        except ConnectionLost:
            return None

    def _pass_time(self) -> Mapping[str, Any]:
        """Let happen what happens while a controller waits."""
        self.clock.advance(self.scenario.step)
        with self.engine.begin() as connection:
            set_clock(connection, self.now)
            job = jobs.find(connection, JOB_ID)
            assert job is not None
            machines = vms.of_job(connection, JOB_ID)
            self._wish(connection, job)
            self._stray(connection)
            may_end = not self._waves and not self.orphans_alive()
            self.agents.speak(connection, job, machines, self.now, may_end=may_end)
        is_over = self.is_told() or self.clock.now() > self.patience
        return {"sweeps": bool(self.scenario.orphans), "is_over": is_over}

    def _wish(self, connection: Connection, job: StoredJob) -> None:
        """Let the user cancel."""
        wish = self.scenario.wish
        is_early = wish == "cancel at once" and self.clock.now() >= CANCELS_AT
        if is_early or (wish == "cancel" and self.agents.trained(self.now) >= TRAINED):
            jobs.request_cancel(connection, job.id, self.now)

    def _stray(self, connection: Connection) -> None:
        """Let unwanted or foreign machines appear; a person confirms what is held.

        The next wave comes when the last one is gone.
        """
        held = sweeps.newest(connection, 1)
        if held and held[0].tripped is not None and held[0].confirmed_at is None:
            sweeps.confirm(connection, held[0].number, self.now)
        if self._waves and not self.orphans_alive() and self.agents.trained(self.now) > 0:
            resource_labels = ResourceLabels(controllers.installation_id(connection), SECRET)
            for _ in range(self._waves.pop(0)):
                key = f"orphan-{len(self.orphans)}"
                stamp = vms.LaunchCounter().count_launch(connection)
                self.orphans.append(self._launch(key, resource_labels.labels(key, stamp)))
                self.foreign.append(self._launch(f"foreign-{key}", {}))

    def _launch(self, key: str, labels: Mapping[str, str]) -> str:
        ours = {INSTALLATION: ACCOUNT, JOB: "job_0", KEY: key}
        request = Request(machine_type="small", zone="a", labels={**labels, **ours})
        return self.cloud.launch(key, request)[0].id

    def orphans_alive(self) -> list[str]:
        """Return the orphans that were not told to end."""
        states = {one.description.id: one.description.state for one in self.cloud.machines()}
        return [orphan for orphan in self.orphans if states[orphan] in ALIVE]

    def is_told(self) -> bool:
        """Whether the story is, as far as the database knows."""
        return self.job().phase.is_final and not any(vm.is_alive for vm in self.rows())

    # What is left.

    def digest(self) -> str:
        """Return everything a new controller could find, with any random names.

        They are counted in the order of machines first, since rows come in that of the names.
        """
        with self.engine.connect() as connection:
            rows = [repr(row) for row in connection.execute(text(EVERYTHING)).all()]
        cloud = (self.cloud.machines(), self.bill(), self.cloud.faults.unfired())
        outside = repr((self.clock.now(), cloud, self.agents.memory(), self._waves))
        names: dict[str, str] = {}

        def told(known: str) -> str:
            return TOKEN.sub(lambda found: names.setdefault(found[0], f"#{len(names)}"), known)

        rows.sort(key=lambda row: TOKEN.sub("#", row))
        return "\n".join([told(outside), *sorted([told(row) for row in rows])])

    def rows(self) -> tuple[Vm, ...]:
        with self.engine.connect() as connection:
            return vms.of_job(connection, JOB_ID)

    def job(self) -> StoredJob:
        with self.engine.connect() as connection:
            job = jobs.find(connection, JOB_ID)
        assert job is not None
        return job

    def said(self) -> list[EventView]:
        with self.engine.connect() as connection:
            return list(jobs.events_after(connection, JOB_ID, 0, 1000))

    def ours(self) -> tuple[Truth, ...]:
        """Return every machine there ever was for the job."""
        strangers = {*self.orphans, *self.foreign}
        return tuple(one for one in self.cloud.machines() if one.description.id not in strangers)

    def bill(self) -> Bill:
        """Return what the cloud will bill if all goes silent now."""
        return self.cloud.bill(1e8)


FORGET = "; ".join(
    (
        *(f"DELETE FROM {name}" for name in reversed(TABLES) if name not in SAME),
        "SELECT setval(pg_get_serial_sequence('events', 'sequence'), 1, false)",
        "SELECT setval(pg_get_serial_sequence('sweeps', 'number'), 1, false)",
    )
)
EVERYTHING = (
    " UNION ALL ".join(f"SELECT '{name}' AS part, t::text AS row FROM {name} t" for name in TABLES)
    + " ORDER BY 1, 2"
)
