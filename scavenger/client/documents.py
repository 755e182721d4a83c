"""Reads a job document from a file, for requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

DocumentFormat = Literal["yaml", "json"]


def document_format(file: Path, text: str) -> DocumentFormat:
    """Tell YAML from JSON by the suffix, or else by the first character."""
    match file.suffix.lower():
        case ".json":
            return "json"
        case ".yaml" | ".yml":
            return "yaml"
        case _:  # standard input has no suffix
            return "json" if text.lstrip().startswith("{") else "yaml"


def read_document(document: str | Path, media: DocumentFormat) -> tuple[str, DocumentFormat]:
    """Return a job document as a request carries it, and its format.

    A file's command runs in the folder of the file, unless the file names another; a controller
    cannot know that folder from the text alone.

    Raises:
        InvalidDocument: The file's document has problems; each has its line and column.
        OSError: The file cannot be read.
    """
    if isinstance(document, str):
        return document, media
    # Reading a document takes longer to import than the rest of the client.
    from scavenger.job.validation import parse_job

    text = document.read_text(encoding="utf-8")
    folder = str(document.resolve().parent)
    spec = parse_job(text, document_format(document, text), directory=folder)
    return json.dumps(spec.document()), "json"
