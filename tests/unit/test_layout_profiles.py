"""Profiles that machines send: what a controller stores of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scavenger.measurement.layout_profile import BlockProfile, LayoutProfile, LinkSpeed
from scavenger.planning.layout_search import LayoutSearch, find_layouts
from scavenger.protocol import MAX_BLOCKS, ProfileReport

LINK = LinkSpeed(1e-5, 1e9)
BLOCK = BlockProfile("layers.0", 0.001, 0.01, 1e3, 1e5, 1e7)
NOTHING = BlockProfile("layers.0", 0.0, 0.0, 0.0, 0.0, 0.0)
PROFILE = LayoutProfile((BLOCK, BLOCK), LINK, LINK, processes_per_machine=2)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"blocks": (BLOCK,) * (MAX_BLOCKS + 1)}, "257 blocks, more than 256"),
        ({"blocks": (NOTHING, NOTHING)}, "its blocks take no time"),
        ({"blocks": (replace(BLOCK, seconds_per_sample=1e308),)}, "figures of its blocks"),
        ({"inside": LinkSpeed(0.0, 1e-300)}, "figures of its links"),
        ({"processes_per_machine": 10**200}, "figures of its machine"),
        ({"blocks": (replace(BLOCK, name="a\0b"),)}, "or holds NUL"),
        ({"uncut_reason": "a" * 1001}, "is longer than 1000"),
    ],
)
def test_a_profile_that_no_layout_can_follow_from_is_refused(
    changes: dict[str, Any], why: str
) -> None:
    ProfileReport("w1", PROFILE)
    with pytest.raises(ValueError, match=why):
        ProfileReport("w1", replace(PROFILE, **changes))


@pytest.mark.parametrize("name", ["conv+relu", "a b", "a,b"])
def test_a_stage_that_begins_with_a_module_no_layout_can_name_is_cut_by_weights(name: str) -> None:
    blocks = tuple(replace(BLOCK, name=f"{name}{place}") for place in range(8))
    found = find_layouts(replace(PROFILE, blocks=blocks), LayoutSearch(), (64,))
    cut = [option.layout.cuts for option in found.options if not option.layout.is_plain]
    assert cut == [()] * len(cut) != []
