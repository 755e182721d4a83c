"""What the API shows of a curve: changes of configuration, and whether there is a knee."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from service.api.show import config_view, show_resizes
from service.db.directives import Resize
from tests.builders import NOW, directive

CONFIGS = st.lists(st.tuples(st.integers(1, 2), st.sampled_from([32, 64])), min_size=1, max_size=8)


@given(CONFIGS)
def test_a_resize_changes_the_configuration_and_follows_from_the_one_before(
    configs: list[tuple[int, int]],
) -> None:
    history = [
        Resize(directive(*config, generation=number), NOW + timedelta(seconds=number), 0.1, 0)
        for number, config in enumerate(configs, start=1)
    ]
    shown = show_resizes(history)
    first, *others = shown
    assert (first.before, first.generation) == (None, 1)
    assert all(resize.before != resize.after for resize in others)
    assert [each.before for each in others] == [each.after for each in shown[:-1]]
    last = config_view(history[-1].directive.config)
    assert shown[-1].after == last, "none of the changes is missing"
