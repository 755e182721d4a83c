"""The controller is killed after what it does; ``make crash`` kills it at every line."""

from __future__ import annotations

from service.postgres import EmbeddedPostgres
from tests.crash import troupe

STORIES = (["recover", "terminate-early"], ["launch-in-vain", "sweep"])
FEWEST = 40


def test_a_controller_that_dies_after_anything_it_did_changes_nothing_but_time(
    postgres: EmbeddedPostgres,
) -> None:
    url = postgres.url("template")
    with troupe.troupe(url, 1) as one, troupe.troupe(url, 1) as other:
        asked = [
            pool.submit(troupe.play_borders, stories)
            for pool, stories in zip((one, other), STORIES, strict=True)
        ]
        found = [pair for part in asked for pair in part.result()]
    wrong = [(name, story.kills, story.wrong) for name, story in found if story.wrong]
    assert not wrong
    assert sum(story.fired for _, story in found) == len(found) >= FEWEST
