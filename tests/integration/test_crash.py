"""The controller is killed after what it does; ``make crash`` kills it at every line, too."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from service.postgres.server import EmbeddedPostgres
from tests.crash import troupe

# Between them they launch, lose, replace and end machines, with and without faults of the cloud.
STORIES = (["recover"], ["launch-in-vain"])
FEWEST = 20


@pytest.fixture(scope="module")
def troupes(postgres: EmbeddedPostgres) -> Iterator[tuple[ProcessPoolExecutor, ...]]:
    """Two troupes of one process each, one for each part of the stories."""
    url = postgres.url("template")
    with troupe.troupe(url, 1) as one, troupe.troupe(url, 1) as other:
        yield one, other


@pytest.mark.slow  # `make crash` plays them all
def test_a_controller_that_dies_after_anything_it_did_changes_nothing_but_time(
    troupes: tuple[ProcessPoolExecutor, ...],
) -> None:
    asked = [
        pool.submit(troupe.play_borders, stories)
        for pool, stories in zip(troupes, STORIES, strict=True)
    ]
    found = [pair for part in asked for pair in part.result()]
    wrong = [(name, story.kills, story.wrong) for name, story in found if story.wrong]
    assert not wrong
    assert sum(story.fired for _, story in found) == len(found) >= FEWEST


def test_a_story_is_played_to_its_end_by_the_api_of_today(
    troupes: tuple[ProcessPoolExecutor, ...],
) -> None:
    """Machines enrol, profile, train and fail in it: it tells when a player falls behind."""
    assert len(troupes[0].submit(troupe.plain_of, "layouts-refused").result().run.lines)


@pytest.mark.slow
def test_the_same_kill_leaves_the_same_world(troupes: tuple[ProcessPoolExecutor, ...]) -> None:
    name = STORIES[0][0]
    run = troupes[0].submit(troupe.plain_of, name).result().run
    last = (run.kill(len(run.lines)),)
    found = troupes[0].submit(troupe.play, name, [last, last]).result()
    assert [one.fired for one in found] == [1, 1]
    assert len({one.world for one in found}) == 1
