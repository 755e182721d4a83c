"""Spelling: what a text may hold, as a pattern for programs and as a sentence for people."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema


@dataclass(frozen=True, slots=True)
class Spelling:
    """Refuses a text in words; the description of the API shows the pattern.

    Stands in an ``Annotated[str, ...]`` where pydantic's own ``pattern`` would repeat the
    expression to people who did not write it.

    Attributes:
        pattern: Regular expression of the whole text.
        rule: What is said of a text that does not match.
    """

    pattern: str
    rule: str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Check the text after all else that is asked of it."""
        expression = re.compile(self.pattern)

        def check(text: str | None) -> str | None:
            if text is None or expression.search(text):
                return text
            raise PydanticCustomError("spelling", "{rule}", {"rule": self.rule})

        return core_schema.no_info_after_validator_function(check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Show the pattern."""
        return handler(schema) | {"pattern": self.pattern}
