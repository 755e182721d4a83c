"""Settings of the controller; the only module of the service that reads the environment."""

from __future__ import annotations

from pathlib import Path

from pydantic import AliasChoices, Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from scavenger.client.client import is_loopback
from scavenger.client.profile import data_directory
from service.observability.logs import LogStyle


class Settings(BaseSettings):
    """Options of the controller, from its command line or ``SCAVENGER_*`` variables.

    Attributes:
        home: Directory of the embedded database, local machines, token and secret.
        machines: Directory of the local machines, one for all controllers of a database; in the
            home when it is not given.
        secret_file: The secret that all controllers of one database share; without it the one of
            the home, which the first controller makes.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        address: URL at which machines reach it, or whichever controller of the database runs; its
            own when it is not given.
        database_url: An existing Postgres; the embedded one is started when it is not given.
        pg_bin: Directory of Postgres programs to use for the embedded database.
        boot_delay: Seconds a local machine pretends to boot.
        log_format: How log lines are written; text where somebody watches, JSON else.
        names: More host names it may be asked under, with commas between them.
        tls_cert: File with its certificate chain; it speaks HTTPS itself then.
        tls_key: File with the key to it.
        behind_proxy: Whether something in front of it speaks HTTPS, on whatever address.
        keep_telemetry: Days for which measured iterations are kept, and what ended machines leave
            on this computer; statistics stay for ever.
        otlp_endpoint: Where traces are sent, by the variable all programs know; nowhere if None.
    """

    model_config = SettingsConfigDict(
        env_prefix="SCAVENGER_",
        cli_prog_name="scavenger serve",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        extra="ignore",
    )

    home: Path = Field(default_factory=data_directory)
    machines: Path | None = None
    secret_file: Path | None = None
    host: str = "127.0.0.1"
    port: int = Field(default=8321, ge=0, le=65535)
    address: str | None = None
    database_url: str | None = None
    pg_bin: Path | None = None
    boot_delay: float = Field(default=0.0, ge=0, le=3600)
    log_format: LogStyle | None = None
    names: str = ""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    behind_proxy: bool = False
    keep_telemetry: int = Field(default=30, ge=1, le=36500)
    otlp_endpoint: str | None = Field(
        default=None, validation_alias=AliasChoices("OTEL_EXPORTER_OTLP_ENDPOINT")
    )

    @model_validator(mode="after")
    def _keeps_tokens_secret(self) -> Settings:
        """Refuse an address that others reach while tokens would be sent to it in the clear."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("--tls-cert and --tls-key belong together: give both, or neither")
        if not (self.is_at_home or self.behind_proxy or self.tls_cert):
            raise ValueError(
                f"{self.host} can be reached from other computers, and tokens would be sent there "
                "in the clear: give --tls-cert and --tls-key, or --behind-proxy if something in "
                "front of it speaks HTTPS, or leave --host at 127.0.0.1"
            )
        return self

    @property
    def is_at_home(self) -> bool:
        """Whether only this computer reaches the address."""
        return is_loopback(self.host)

    @property
    def known_names(self) -> frozenset[str]:
        """Host names it may be asked under; none means any."""
        more = frozenset(name.strip().lower() for name in self.names.split(",") if name.strip())
        if self.is_at_home:
            return more | {"127.0.0.1", "localhost", "[::1]", self.host.lower()}
        return more | {self.host.lower()} if more else more


def driver_url(url: str) -> str:
    """Name the driver in a Postgres URL that does not.

    >>> driver_url("postgres://db/scavenger")
    'postgresql+psycopg://db/scavenger'
    """
    scheme, separator, rest = url.partition("://")
    is_plain = scheme in ("postgres", "postgresql")
    return f"postgresql+psycopg{separator}{rest}" if is_plain else url
