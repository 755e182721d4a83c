"""How the controller is set up; the only place of the service that reads the environment."""

from __future__ import annotations

from pathlib import Path

from pydantic import AliasChoices, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from scavenger.client.profile import data_directory
from service.logs import Format


class Settings(BaseSettings):
    """Options of the controller, from its command line or ``SCAVENGER_*`` variables.

    Attributes:
        home: Directory of the embedded database, local machines, token and secret.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        database_url: An existing Postgres; the embedded one is started when it is not given.
        pg_bin: Directory of Postgres programs to use for the embedded database.
        boot_delay: Seconds a local machine pretends to boot.
        log_format: How log lines are written; text where somebody watches, JSON else.
        otlp_endpoint: Where traces are sent, by the variable all programs know; nowhere if None.
    """

    model_config = SettingsConfigDict(
        env_prefix="SCAVENGER_",
        cli_prog_name="scavenger serve",
        cli_kebab_case=True,
        extra="ignore",
    )

    home: Path = Field(default_factory=data_directory)
    host: str = "127.0.0.1"
    port: int = Field(default=8321, ge=0, le=65535)
    database_url: str | None = None
    pg_bin: Path | None = None
    boot_delay: float = Field(default=0.0, ge=0, le=3600)
    log_format: Format | None = None
    otlp_endpoint: str | None = Field(
        default=None, validation_alias=AliasChoices("OTEL_EXPORTER_OTLP_ENDPOINT")
    )
