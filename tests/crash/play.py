"""Play one story whose controllers are killed where it says, each in a process of its own."""

from __future__ import annotations

import gc
import os
import signal
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from sqlalchemy import Engine

from tests.crash.controller import become, control
from tests.crash.crashline import Count, Executioner, Kill, Lines
from tests.crash.oracle import LONGEST, Facts, facts_of, objections
from tests.crash.scenario import Scenario
from tests.crash.world import World
from tests.fakecloud.emulator import Emulator

MOST = 400.0  # seconds of its own that any plain story takes


@dataclass(frozen=True, slots=True)
class Plain:
    """A story without a kill.

    Attributes:
        run: What its controller executed.
    """

    facts: Facts
    run: Lines


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a story.

    Attributes:
        fired: How many of its kills were.
        world: What the first kill left behind.
        delay: Seconds it took longer than the plain story; None where it was not played to its end,
            since from the same world it was before.
    """

    kills: tuple[Kill, ...]
    fired: int
    world: str
    delay: float | None
    wrong: tuple[str, ...]


class Theatre:
    """Plays stories, one at a time, on a database of its own.

    Args:
        engine: For the world.
        controllers: The same database, for the controllers; each fork makes connections of its own.
        emulator: Plays the cloud; None for the fake cloud as it is.
    """

    def __init__(
        self, engine: Engine, controllers: Engine, emulator: Emulator | None = None
    ) -> None:
        self.engine, self.controllers, self.emulator = engine, controllers, emulator
        self.judged: set[tuple[str, str]] = set()
        self._plain: dict[str, Plain] = {}

    def plain(self, scenario: Scenario) -> Plain:
        """Return a story without a kill, played once."""
        if scenario.name not in self._plain:
            self._warm_up(scenario)
            self._plain[scenario.name] = self._count(scenario)
        return self._plain[scenario.name]

    def _warm_up(self, scenario: Scenario) -> None:
        """Play a story in this process, so that forks find everything compiled."""
        world = self._plain_world(scenario)
        control(self.controllers, world.answer, world.beginning)
        self.controllers.dispose()
        if self.emulator is not None:
            self.emulator.disconnect()
        gc.collect()
        gc.freeze()  # a collection would copy all of the interpreter in every fork

    def _count(self, scenario: Scenario) -> Plain:
        """Play a story without a kill.

        Raises:
            AssertionError: Even so it does not end as it should.
        """
        world = self._plain_world(scenario)
        counted = self._control(world, Count())
        facts = facts_of(world)
        wrong = [*objections(world, facts)]
        if facts.phase is not scenario.phase:
            wrong.append(f"the job ended {facts.phase}: {facts.reason}")
        assert not wrong, f"{scenario.name}: {wrong}"
        assert counted.lines is not None
        return Plain(facts, counted.lines)

    def play(self, scenario: Scenario, plain: Plain, kills: tuple[Kill, ...]) -> Outcome:
        """Play a story with kills, and judge it, unless the same was left behind once before."""
        world = self._world(scenario, plain)
        fired, left = 0, ""
        for kill in kills:
            ended = self._control(world, Executioner(kill))
            fired += ended.is_killed
            left = left or world.digest()
            if not ended.is_killed:
                return Outcome(kills, fired, left, None, ("it was not killed", *world.complaints))
        key = (scenario.name, left)
        if len(kills) == 1 and key in self.judged:
            return Outcome(kills, fired, left, None, tuple(world.complaints))
        self._control(world, None)
        wrong = tuple(objections(world, plain.facts))
        if not wrong:
            self.judged.add(key)
        return Outcome(kills, fired, left, world.clock.now() - plain.facts.end, wrong)

    def recover(self, scenario: Scenario, plain: Plain, kill: Kill) -> Lines:
        """Return the lines of the controller that comes after one that was killed."""
        world = self._world(scenario, plain)
        assert self._control(world, Executioner(kill)).is_killed, f"{kill} did not happen"
        counted = self._control(world, Count())
        assert counted.lines is not None, world.complaints
        return counted.lines

    def _plain_world(self, scenario: Scenario) -> World:
        """Return a world that waits for as long as a plain story may take."""
        world = World(self.engine, scenario, MOST, self.emulator)
        world.patience += 2 * world.proof  # an orphan is awaited for as long as lists may lag
        return world

    def _world(self, scenario: Scenario, plain: Plain) -> World:
        """Return a world that waits for as long as a story with kills may take."""
        world = World(self.engine, scenario, plain.facts.end + LONGEST + 1, self.emulator)
        world.patience += world.proof
        return world

    def _control(self, world: World, watcher: Count | Executioner | None) -> Ended:
        """Let a controller act until it is killed or the world is over."""
        ours, theirs = Pipe()
        child = os.fork()
        if child == 0:
            ours.close()
            become(theirs, self.controllers, watcher, world.beginning)
        theirs.close()
        lines = serve(ours, world)
        ours.close()
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        return Ended(code == -signal.SIGKILL, lines)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a controller ended."""

    is_killed: bool
    lines: Lines | None


def serve(pipe: Connection[Any, Any], world: World) -> Lines | None:
    """Answer a controller until it is gone; what was asked is done though it is not heard."""
    counted = None
    while True:
        try:
            path, content = pipe.recv()
        except (EOFError, ConnectionResetError):
            return counted
        if path == "/log":
            world.complaints.append(content)
        elif path == "/counted":
            counted = content
        else:
            told = world.answer(path, content)
            try:
                pipe.send(told)
            except BrokenPipeError:
                continue
