"""Settings of the controller; the only module of the service that reads the environment."""

from __future__ import annotations

import re
import textwrap
from argparse import Action, HelpFormatter
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, AliasChoices, Field, model_validator
from pydantic_settings import BaseSettings, CliSettingsSource, CliSuppress, SettingsConfigDict

from scavenger.client.profile import data_directory, is_loopback
from scavenger.worker_env import check_controller_url
from service.observability.logs import LogStyle

LocalPath = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]


class Settings(BaseSettings):
    """Run the controller until Ctrl-C. Every option can also be set as a SCAVENGER_* variable.

    Example: scavenger serve --port 8321 --home ~/.scavenger
    """

    model_config = SettingsConfigDict(
        env_prefix="SCAVENGER_",
        cli_prog_name="scavenger serve",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        # The text below a field is its help, so that options are declared and described once.
        use_attribute_docstrings=True,
        extra="ignore",
    )

    home: LocalPath = Field(default_factory=data_directory)
    """Data directory: embedded database, local machines, token and secret. Default:
    SCAVENGER_HOME, or else ~/.scavenger; /var/lib/scavenger for root."""

    host: str = "127.0.0.1"
    """Address to listen on."""

    port: int = Field(default=8321, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""

    address: Annotated[str, AfterValidator(check_controller_url)] | None = None
    """Public URL of the controller (or of its load balancer), as workers see it. Default: the
    address it listens on."""

    names: str = ""
    """Further host names that clients may use, separated by commas."""

    behind_proxy: bool = False
    """A proxy in front of the controller terminates TLS."""

    tls_cert: LocalPath | None = None
    """File with the certificate chain; the controller then serves HTTPS itself."""

    tls_key: LocalPath | None = None
    """File with the private key of --tls-cert."""

    tls_ca: LocalPath | None = None
    """File with the certificate authority that machines of a cloud trust instead of their
    system's, for a certificate that no public authority signed."""

    secret_file: LocalPath | None = None
    """File with the secret that all controllers of one database share. Default: a secret in
    --home, which the first start creates."""

    clouds: LocalPath | None = None
    """Clouds file: the accounts and regions in which machines are launched. Default: this
    computer."""

    machines: LocalPath | None = None
    """Directory of the local machines, the same for all controllers of a database. Default: in
    --home."""

    keep_telemetry: int = Field(default=30, ge=1, le=36500)
    """Days to keep measured iterations, code that no job names, and files of ended machines on this
    computer."""

    log_format: LogStyle | None = None
    """Format of log lines. Default: text on a terminal, json otherwise."""

    # Only developers and the demo need the next three options; every user of the computer could
    # read the password that a database URL on the command line holds. All of them have their
    # environment variables.
    pg_bin: CliSuppress[Path | None] = None
    """Directory of the Postgres programs of the embedded database."""

    boot_delay: CliSuppress[float] = Field(default=0.0, ge=0, le=3600)
    """Seconds that a local machine pretends to boot."""

    simulated_job: CliSuppress[bool] = False
    """Add a finished simulated job, as the demo does."""

    database_url: CliSuppress[str | None] = None
    """An existing Postgres, instead of the embedded one."""

    otlp_endpoint: CliSuppress[str | None] = Field(
        default=None, validation_alias=AliasChoices("OTEL_EXPORTER_OTLP_ENDPOINT")
    )
    """Where traces are sent, in the variable that OpenTelemetry defines; None sends none."""

    @model_validator(mode="after")
    def _keeps_tokens_secret(self) -> Settings:
        """Refuse an address that others reach while tokens would be sent to it in the clear."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("--tls-cert and --tls-key belong together: give both, or neither")
        if not (self.is_loopback_only or self.behind_proxy or self.tls_cert):
            raise ValueError(
                f"{self.host} can be reached from other computers, and tokens would be sent there "
                "in the clear: give --tls-cert and --tls-key, or --behind-proxy if something in "
                "front of it speaks HTTPS, or leave --host at 127.0.0.1"
            )
        return self

    @property
    def is_loopback_only(self) -> bool:
        return is_loopback(self.host)

    @property
    def allowed_hosts(self) -> frozenset[str]:
        """Host names it may be asked under; none means any."""
        more = frozenset(name.strip().lower() for name in self.names.split(",") if name.strip())
        if self.is_loopback_only:
            return more | {"127.0.0.1", "localhost", "[::1]", self.host.lower()}
        return more | {self.host.lower()} if more else more


def read_settings() -> Settings:
    """Read the arguments of this process, its environment and the defaults, in this order.

    Raises:
        ValidationError: They cannot be used.
    """
    source = CliSettingsSource[Settings](Settings, cli_parse_args=True, formatter_class=OptionHelp)
    return Settings(_cli_settings_source=source)


class OptionHelp(HelpFormatter):
    """Help that wraps its paragraphs, and names a default only where that tells something."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.strip().split("\n\n")
        return "\n\n".join(textwrap.fill(" ".join(each.split()), width) for each in paragraphs)

    def _get_help_string(self, action: Action) -> str | None:
        return re.sub(
            r" \(default: (null|False)?\)| \(default factory: .*\)", "", action.help or ""
        )


def driver_url(url: str) -> str:
    """Name the driver in a Postgres URL that does not.

    >>> driver_url("postgres://db/scavenger")
    'postgresql+psycopg://db/scavenger'
    """
    scheme, separator, rest = url.partition("://")
    is_plain = scheme in ("postgres", "postgresql")
    return f"postgresql+psycopg{separator}{rest}" if is_plain else url
