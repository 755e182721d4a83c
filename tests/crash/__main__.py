"""``python -m tests.crash``: kill the controller at every line and effect, and twice at some."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random

from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from service.db.database import migrate
from service.postgres.server import EmbeddedPostgres
from tests.conftest import run
from tests.crash import troupe
from tests.crash.crashline import Kill, Line, executable, short, watch
from tests.crash.play import Outcome, Plain
from tests.crash.points import kills_of, sample_of, stretch_of
from tests.crash.scenario import NAMED, names_for
from tests.fakecloud.emulator import CLOUD_NAMES

CHUNK = 20


def main() -> None:
    """Print what was hit and what went wrong; fail if anything did."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--scenario", choices=NAMED, action="append", help="default: all")
    parser.add_argument("--point", help="SCENARIO:LINE or SCENARIO:LINE,LINE plays this again")
    parser.add_argument("--cloud", choices=CLOUD_NAMES, default="fake", help="whose provider runs")
    parser.add_argument("--kills", type=int, help="kills of each story, drawn; default: all")
    parser.add_argument("--pairs", type=int, default=300, help="kills that are followed by another")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    watch(options.cloud)
    with database() as url, troupe.troupe(url, options.processes, options.cloud) as pool:
        if options.point:
            sys.exit(0 if again(pool, options.point) else 1)
        names = options.scenario or names_for(options.cloud)
        is_well = lines(pool, names, options.kills, options.seed)
        is_well &= pairs(pool, names, options.pairs, options.seed)
    sys.exit(0 if is_well else 1)


@contextmanager
def database() -> Iterator[str]:
    """Serve a migrated database to copy."""
    with tempfile.TemporaryDirectory(prefix="scavenger-tests-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        with EmbeddedPostgres(directory / "postgres") as server:
            run(server, "CREATE DATABASE template")
            migrate(create_engine(server.url("template"), poolclass=NullPool))
            yield server.url("template")


def lines(pool: ProcessPoolExecutor, names: list[str], most: int | None, seed: int) -> bool:
    """Kill after every effect of each story and at every line once, or at some of these points.

    Returns:
        Whether all went well.
    """
    print(
        f"{'story':17}{'lines run':>10}{'distinct':>9}{'effects':>8}{'kills':>7}{'fired':>7}"
        f"{'worlds':>7}{'slowest':>8}{'seconds':>8}{'wrong':>6}"
    )
    wrong, seconds = 0, time.monotonic()
    killed: set[Line] = set()
    hit: list[Line | None] = []
    for name in names:
        began = time.monotonic()
        plain = pool.submit(troupe.plain_of, name).result()
        every = kills_of(plain.run, killed)
        kills = every if most is None else sample_of(every, plain.run, most, seed)
        parts = [kills[at : at + CHUNK] for at in range(0, len(kills), CHUNK)]
        asked = [pool.submit(troupe.play, name, [(kill,) for kill in part]) for part in parts]
        found = [outcome for one in asked for outcome in one.result()]
        bad = complain(name, found) + uneven(name, plain, found, is_whole=kills == every)
        delays = [one.delay for one in found if one.delay is not None]
        print(
            f"{name:17}{len(plain.run.lines):>10}{len(set(plain.run.lines)):>9}{len(plain.run.effects):>8}"
            f"{len(found):>7}{sum(one.fired for one in found):>7}"
            f"{len({one.world for one in found}):>7}{max(delays):>6.0f} s"
            f"{time.monotonic() - began:>8.0f}{bad:>6}",
            flush=True,
        )
        wrong += bad
        killed |= {*plain.run.lines}
        hit += [one.kills[0].line for one in found]
    there = executable()
    print(
        f"{len(hit)} kills at {len({*hit})} distinct lines, {len(there & {*hit}) / len(there):.0%} "
        f"of those there are, {time.monotonic() - seconds:.0f} s, {wrong} wrong"
    )
    return not wrong


def uneven(name: str, plain: Plain, found: list[Outcome], *, is_whole: bool) -> int:
    """Count the stretches between two effects in which kills left different worlds, or none was.

    Of a sample, some stretches have no kill.
    """
    worlds: dict[int, set[str]] = defaultdict(set)
    for one in found:
        worlds[stretch_of(plain.run, one.kills[0].at)].add(one.world)
    due = {stretch_of(plain.run, at) for at in range(1, len(plain.run.lines) + 1)}
    missed = sorted(due - set(worlds)) if is_whole else []
    odd = missed + sorted(at for at, left in worlds.items() if len(left) > 1)
    for stretch in odd:
        print(f"{name}: after effect {stretch} kills left {len(worlds[stretch])} worlds")
    return len(odd)


def pairs(pool: ProcessPoolExecutor, names: list[str], number: int, seed: int) -> bool:
    """Kill twice, at random; whether all went well."""
    began, random = time.monotonic(), Random(seed)
    asked: list[tuple[str, Future[Outcome]]] = []
    for _ in range(number):
        name = random.choice(names)
        asked.append((name, pool.submit(troupe.play_pair, name, random.random(), random.random())))
    found = [(name, one.result()) for name, one in asked]
    wrong = sum(complain(name, [outcome]) for name, outcome in found)
    fired = sum(outcome.fired for _, outcome in found)
    slowest = max((one.delay for _, one in found if one.delay is not None), default=0.0)
    print(
        f"{number} pairs of seed {seed}: {fired} of {2 * number} kills fired, slowest "
        f"{slowest:.0f} s, {time.monotonic() - began:.0f} s, {wrong} wrong"
    )
    return not wrong


def again(pool: ProcessPoolExecutor, point: str) -> bool:
    """Play one story again and say what is wrong with it."""
    name, _, places = point.partition(":")
    first, *later = (int(place) for place in places.split(","))
    plain = pool.submit(troupe.plain_of, name).result()
    kills = (plain.run.kill(first), *map(Kill, later))
    (outcome,) = pool.submit(troupe.play, name, [kills]).result()
    print(f"{name}: killed before {short(plain.run.lines[first - 1])}")
    print(f"{outcome.fired} of {len(kills)} kills fired, {outcome.delay} s longer")
    return not complain(name, [outcome])


def complain(name: str, found: list[Outcome]) -> int:
    """Print what went wrong, and how to see it again; return how often."""
    bad = [one for one in found if one.wrong]
    for one in bad[:10]:
        places = ",".join(str(kill.at) for kill in one.kills)
        line = one.kills[-1].line
        print(f"POINT={name}:{places} {short(line) if line else ''}")
        for sentence in one.wrong:
            print(f"    {sentence}")
    return len(bad)


if __name__ == "__main__":
    main()
