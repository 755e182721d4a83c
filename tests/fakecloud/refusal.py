"""How a fake cloud says no, and how it says nothing that can be understood."""

from __future__ import annotations


class Refusal(Exception):
    """The cloud did not do it, and says why in one word that programs understand.

    Attributes:
        code: The word, as the largest cloud writes it.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


class ConnectionLost(Exception):
    """No answer comes: the caller cannot know what was done."""


class Gibberish(Exception):
    """What stands before the cloud answers instead of it, and not in its language."""
