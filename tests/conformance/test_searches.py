"""Every registered search strategy keeps the promises of all."""

from __future__ import annotations

import pytest

from scavenger.planning.search.registry import SEARCHES
from tests.conformance.search import SearchConformance, state

__all__ = ["state"]


@pytest.mark.parametrize("name", SEARCHES)
class TestRegisteredSearches(SearchConformance):
    @pytest.fixture(autouse=True)
    def _named(self, name: str) -> None:
        self.name = name
