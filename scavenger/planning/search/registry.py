"""The search strategies that job documents and commands can name; a new one is one line here."""

from __future__ import annotations

from scavenger.planning.search.auto import AutoSearch
from scavenger.planning.search.corners import CornerSearch
from scavenger.planning.search.full import FullSearch
from scavenger.planning.search.stored import StoredSearch
from scavenger.planning.search.strategy import SearchStrategy
from scavenger.planning.search.universal import UniversalSearch

SEARCHES: dict[str, SearchStrategy] = {
    strategy.name: strategy
    for strategy in (AutoSearch(), StoredSearch(), CornerSearch(), FullSearch(), UniversalSearch())
}
