"""World: the cloud, the machines' agents, the user and the time, which outlive every controller."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid5

from pydantic import validate_call
from pydantic_core import from_json, to_json
from sqlalchemy import Connection, Engine, text

from scavenger.schemas.events import EventView
from scavenger.schemas.orders import WISHES
from service.clouds.labels import ResourceLabels
from service.clouds.provider import LaunchRequest
from service.db import controllers, directives, jobs, orders, schema, sweeps, vms
from service.db.jobs import StoredJob
from service.db.orders import StoredOrder
from service.db.vms import Vm
from tests.builders import NOW, boot, offer
from tests.crash.agents import Agents
from tests.crash.controller import ACCOUNT, SECRET, Beginning
from tests.crash.scenario import Scenario
from tests.crash.virtual_time import set_clock
from tests.fakecloud.bill import Bill
from tests.fakecloud.clock import VirtualClock
from tests.fakecloud.cloud import FakeCloud, Truth
from tests.fakecloud.emulator import MACHINE_TYPE, CloudHabits, Emulator, Tap
from tests.fakecloud.http_server import Answer
from tests.fakecloud.machine import Request, State
from tests.fakecloud.provider import INSTALLATION, JOB, KEY
from tests.fakecloud.refusal import ConnectionLost
from tests.fakecloud.server import answer
from tests.fakecloud.spot import SpotPrices

JOB_ID, BOOT, ENDING = "job_1", 2.0, 2.0
# Later than any plain story, time passes faster: lists are awaited that prove an absence.
LATE, LATE_STEP = 200.0, 10.0
MINIMUM, PRICE_PERIOD = 60.0, 20.0
PLAIN = CloudHabits()
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
        emulator: Plays the cloud; None for the fake cloud as it is.
        patience: When the world ends, in seconds of its own; the story should have, long before.
        complaints: What controllers logged as an error.
    """

    engine: Engine
    scenario: Scenario
    patience: float
    emulator: Emulator | None = None
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.spec, self.clock = self.scenario.spec(), VirtualClock()
        self.habits = PLAIN if self.emulator is None else self.emulator.habits
        capacity = {
            Request(MACHINE_TYPE, self.habits.zone(letter)).place: machines
            for letter, machines in self.scenario.capacity.items()
        }
        self.cloud = FakeCloud(
            self.clock,
            self.habits.settings(
                self.spec.price_per_hour,
                seed=1,
                minimum=0.0 if self.emulator is None else MINIMUM,
                boot=BOOT,
                ending=ENDING,
                list_lag=self.scenario.lag,
                lateness=0.0,
                capacity=capacity,
                spot=SpotPrices(period=PRICE_PERIOD),
            ),
        )
        if self.emulator is not None:
            self.emulator.play(self.cloud)
        asked = (self.cloud.launch, self.cloud.list, self.cloud.terminate)
        self._doors = {f"/cloud/{do.__name__}": validate_call(do) for do in asked}
        for operation, fault, number in self.scenario.faults:
            launch_key = str(uuid5(vms.LAUNCH_KEY_NAMESPACE, f"{JOB_ID}/{number}"))
            token = None if number is None else self.habits.token(launch_key)
            self.cloud.faults.next(operation, fault, token)
        self.agents = Agents(self.cloud, self.scenario, JOB_ID, self.habits)
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
        promised = self.scenario.lag if self.emulator is None else self._promised_lag()
        return UNSEEN + timedelta(seconds=promised)

    @property
    def proof(self) -> float:
        """Seconds until lists prove that a machine never came, beyond those of the fake cloud."""
        if self.emulator is None:
            return 0.0
        return self.emulator.open().traits.max_boot_seconds + self._promised_lag()

    def _promised_lag(self) -> float:
        assert self.emulator is not None
        return self.emulator.open().traits.max_list_lag_seconds

    @property
    def beginning(self) -> Beginning:
        """What a controller has to know to begin."""
        return Beginning(self.now, self.scenario.lag, BOOT + SPARE, self.emulator)

    def key_of(self, truth: Truth) -> str:
        """Return the launch key of a machine."""
        return self.habits.launch_key(truth.description.token)

    def answer(self, path: str, body: bytes) -> Answer | None:
        """Answer a controller; None breaks the connection."""
        if path == "/wait":
            self.clock.advance(from_json(body))
            self._set_clock()
            return 200, "application/json", b""
        if path == "/nap":
            return 200, "application/json", to_json(self._pass_time())
        try:
            return answer(self._doors, path, body)
        except ConnectionLost:
            return None

    def _pass_time(self) -> Mapping[str, Any]:
        """Let happen what happens while a controller waits."""
        is_late = self.clock.now() > LATE
        self.clock.advance(LATE_STEP if is_late else self.scenario.step)
        with self.engine.begin() as connection:
            set_clock(connection, self.now)
            job = jobs.find(connection, JOB_ID)
            assert job is not None
            machines = vms.of_job(connection, JOB_ID)
            self._wish(connection, job)
            is_ordered = self._order(connection, job)
            self._stray(connection)
            may_end = not self._waves and not self.orphans_alive() and is_ordered
            self.agents.speak(connection, job, machines, self.now, may_end=may_end)
        is_over = self.is_told() or self.clock.now() > self.patience
        return {"sweeps": bool(self.scenario.orphans), "is_over": is_over}

    def _wish(self, connection: Connection, job: StoredJob) -> None:
        """Let the user cancel."""
        wish = self.scenario.wish
        is_early = wish == "cancel at once" and self.clock.now() >= CANCELS_AT
        if is_early or (wish == "cancel" and self.agents.trained(self.now) >= TRAINED):
            jobs.request_cancel(connection, job.id, self.now)

    def _order(self, connection: Connection, job: StoredJob) -> bool:
        """Let the user give the next orders, once the last ones were obeyed; whether all were."""
        given = self._given(connection)
        if any(order.is_open for order in given):
            return False
        if len(given) == len(self.scenario.orders):
            return True
        following = self.scenario.orders[len(given) : len(given) + self.scenario.at_once]
        told = directives.newest(connection, JOB_ID)
        # By what a controller has done, not by what was measured or by the time: the user also
        # orders while no controller lives, and the same probe is to be under way after any kill.
        due = self.scenario.generations[len(given) : len(given) + 1]
        is_due = told is not None and any(told[0].generation >= number for number in due)
        # What was chosen may not be told yet; the agents trained on what was chosen before.
        is_there = told is not None and told[0].config == job.chosen
        is_due |= is_there and self.agents.trained(self.now) > 0
        if is_due or following[0][0] == "resume":
            jobs.lock_for_change(connection, JOB_ID)
            for kind, wish in following:
                facts = {"reason": "", "by": "a token", "now": self.now}
                read = WISHES[kind].model_validate(wish)
                orders.give_order(connection, JOB_ID, kind, read, **facts)
            jobs.notify_job_changed(connection, JOB_ID)
        return False

    def ordered(self) -> list[StoredOrder]:
        """Return all orders."""
        with self.engine.connect() as connection:
            return self._given(connection)

    def _given(self, connection: Connection) -> list[StoredOrder]:
        """Return the orders so far, oldest first."""
        newest_first = orders.orders_before(connection, JOB_ID, None, len(self.scenario.orders) + 1)
        return list(reversed(newest_first))

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
        """Launch a machine that no row announces; return the fake cloud's own id of it."""
        if self.emulator is not None:
            return self._launch_emulated(self.emulator, key, labels)
        ours = {INSTALLATION: ACCOUNT, JOB: "job_0", KEY: key}
        request = Request(machine_type=MACHINE_TYPE, zone="a", labels={**labels, **ours})
        return self.cloud.launch(key, request)[0].id

    def _launch_emulated(self, emulator: Emulator, key: str, labels: Mapping[str, str]) -> str:
        emulator.tap = Tap(wait=self.clock.advance, stopwatch=self.clock.now)
        provider = emulator.open()
        place = offer(
            cloud=provider.name,
            zone=self.habits.zone("a"),
            machine_type=MACHINE_TYPE,
            image=provider.traits.image,
        )
        forever = boot(job="job_0", worker=key, prepaid=1e6, agent="a" * 64)
        provider.launch(LaunchRequest(launch_key=key, offer=place, boot=forever, labels=labels))
        emulator.disconnect()  # controllers that are forked from here share no connection
        return self.cloud.machines()[-1].description.id

    def _set_clock(self) -> None:
        with self.engine.begin() as connection:
            set_clock(connection, self.now)

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
        api = None if self.emulator is None else self.emulator.memory()
        cloud = (self.cloud.machines(), self.bill(), self.cloud.faults.unfired(), api)
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
