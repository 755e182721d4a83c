"""Start the controller: database, migrations, reconciler, HTTP. Stop them in reverse order."""

from __future__ import annotations

import gc
import json
import logging
import os
import random
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from functools import partial
from hashlib import sha256
from itertools import repeat
from pathlib import Path
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError
from sqlalchemy import Engine, make_url
from sqlalchemy.exc import OperationalError

from service.agent_package import AgentPackage
from service.api.dependencies import AppState
from service.api.health import RECONCILER_TASK, SWEEPER_TASK
from service.api.streams import EventStreams
from service.app import build_app
from service.auth.secrets import SecretStore
from service.auth.tokens import ControllerKeys
from service.background import (
    MAINTENANCE_STOP_TIMEOUT,
    JointHeartbeat,
    Maintenance,
    Periodic,
    PgListener,
    SpotPriceWatch,
)
from service.clouds.clouds import THIS_COMPUTER, Clouds
from service.clouds.executor import CloudExecutors
from service.clouds.inventory import Inventories
from service.clouds.labels import ResourceLabels
from service.clouds.metered import MeteredProvider
from service.clouds.provider import Provider
from service.clouds.registry import open_clouds
from service.clouds.storage import (
    DELETION_INTERVAL,
    CheckpointStorage,
    delete_old_checkpoints,
)
from service.dashboard_files import DashboardFiles
from service.db import clock, controllers, jobs, prices, vms
from service.db.database import migrate, open_pool
from service.errors import CloudError, CloudsFileRefused, HomeUnusable, ServiceError
from service.garbage_collection.collector import CollectorLoop, GarbageCollector
from service.observability.logs import start_logging
from service.observability.redaction import Redactor
from service.observability.tracing import start_tracing
from service.outbound import PUBLIC_INTERNET
from service.postgres.server import EmbeddedPostgres
from service.prices import shipped_prices
from service.reconciler.fleet import ControllerContact, Fleet
from service.reconciler.loop import ReconcilerLoop
from service.reconciler.tick import Reconciler
from service.settings import Settings, driver_url, read_settings
from service.simulated_job import add_simulated_job
from service.webhooks.sender import WebhookSender


def freeze_loaded_objects() -> None:
    """Exclude the objects that exist now from later garbage collections, and make those rare.

    Call it once, before serving. A full collection stops all answers for 40 ms, and little of what
    a controller makes is cyclic.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


log = logging.getLogger("scavenger")

MAX_CLOUD_CALLS = 8  # as many jobs wait for their cloud at once without keeping others waiting


def main() -> int:
    """Serve until told to stop; returns the exit code."""
    try:
        settings = read_settings()
    except ValidationError as error:
        problems = [": ".join([*map(str, p["loc"]), p["msg"]]) for p in error.errors()]
        advice = "correct them and start again; scavenger serve --help lists them"
        print("\n".join(["these settings cannot be used:", *problems, advice]), file=sys.stderr)
        return 2
    if shows_password(settings, sys.argv[1:]):
        print(
            "every user of this computer can read the database's password in --database-url: "
            "give it in SCAVENGER_DATABASE_URL instead",
            file=sys.stderr,
        )
        return 2
    redactor = Redactor()
    start_logging(redactor, settings.log_format, sys.stderr)
    start_tracing(settings.otlp_endpoint)
    # uvicorn hands the signal on when it has shut down; the database must still be stopped then.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    try:
        with open_database(settings) as url:
            redactor.add_secrets(url, make_url(url).password or "")
            serve(settings, url, redactor, open_clouds(settings))
    except ServiceError as error:
        print(redactor.clean(error.headline), file=sys.stderr)
        return error.exit_code
    except OperationalError as error:
        why = f"the database does not answer: {str(error.orig).strip()}"
        advice = "start it, or put --database-url right, and start the controller again"
        print(redactor.clean(f"{why}\n{advice}"), file=sys.stderr)
        return 1
    return 0


def shows_password(settings: Settings, arguments: Sequence[str]) -> bool:
    """Whether the arguments of this process hold the password of its database."""
    url = settings.database_url
    is_named = url is not None and any(url in argument for argument in arguments)
    return is_named and make_url(driver_url(str(url))).password is not None


@contextmanager
def open_database(settings: Settings) -> Iterator[str]:
    """Return the database's URL, and run the embedded one as long as it is needed."""
    try:
        settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise HomeUnusable(
            f"the data directory {settings.home} cannot be used: {error.strerror}; name one that "
            "your user may write to: --home or SCAVENGER_HOME"
        ) from None
    if os.geteuid() == 0:  # the database's own user must pass through, and see nothing
        settings.home.chmod(0o711)
    if settings.database_url is not None:
        yield driver_url(settings.database_url)
        return
    with EmbeddedPostgres(settings.home / "postgres", settings.pg_bin) as postgres:
        yield postgres.url()


def serve(settings: Settings, url: str, redactor: Redactor, opened: Clouds) -> None:
    """Run reconciler and HTTP until a signal comes."""
    keys = ControllerKeys.at(settings.home, settings.secret_file)
    redactor.add_secrets(keys.home_token, keys.secret)
    engine = open_pool(url)
    migrate(engine)
    with engine.begin() as connection:
        controllers.check_secret(connection, keys.fingerprint)
    check_clouds(engine, opened)
    store_shipped_prices(engine)
    if settings.simulated_job:
        add_simulated_job(engine, clock.now(engine))
    server_socket = bind_port(settings)
    scheme = "http" if settings.tls_cert is None else "https"
    address = f"{scheme}://{settings.host}:{server_socket.getsockname()[1]}"
    clouds = Clouds(MeteredProvider(provider) for provider in opened)
    agent_package = AgentPackage.build()
    ca = None if settings.tls_ca is None else settings.tls_ca.read_bytes()
    contact = ControllerContact(
        settings.address or address,
        keys.bootstrap_token,
        agent_package.digest,
        None if ca is None else sha256(ca).hexdigest(),
    )
    reconciler = build_reconciler(engine, keys, contact, clouds)
    inventories = Inventories.of(engine, clouds, threads=1)
    loop = ReconcilerLoop(reconciler, inventories)
    labels = reconciler.fleet.resource_labels
    collectors = [
        CollectorLoop(GarbageCollector(engine, one, labels, partial(inventories.recent, one.name)))
        for one in clouds
    ]
    maintenance = Maintenance(engine, timedelta(days=settings.keep_telemetry), clouds)
    price_watch = SpotPriceWatch(engine, clouds)
    deletion = Periodic(
        "old checkpoints",
        lambda: delete_old_checkpoints(engine, clouds, clock.now(engine)),
        repeat(DELETION_INTERVAL),
        stop_timeout=MAINTENANCE_STOP_TIMEOUT,
    )
    sender = WebhookSender(
        engine,
        keys,
        contact.address,
        PUBLIC_INTERNET,
        random.Random(),  # noqa: S311 - it spreads tries
        partial(clock.now, engine),
    )
    app_state = AppState(
        engine,
        clouds,
        CheckpointStorage(settings.home.resolve(), clouds),
        heartbeats={
            RECONCILER_TASK: loop.periodic.heartbeat,
            SWEEPER_TASK: JointHeartbeat([each.periodic.heartbeat for each in collectors]),
        },
        max_startup_seconds=max(
            one.traits.max_boot_seconds + one.traits.resize_seconds for one in clouds
        ),
        secret_store=SecretStore(settings.home / "secrets"),
        agent_package=agent_package,
        ca=ca,
        dashboard=DashboardFiles.read(),
        is_https=settings.tls_cert is not None or settings.behind_proxy,
    )
    app = build_app(app_state, keys, allowed_hosts=settings.allowed_hosts)
    streams: EventStreams = app.state.streams

    def hear_of_job(job: str) -> None:
        loop.nudge(job)
        streams.note_job(job)

    def hear_again() -> None:
        loop.nudge_all()
        streams.wake()

    pg_listener = PgListener(engine.url, hear_of_job, hear_again, streams.wake)
    server = StreamingServer(http_config(settings, app), streams)
    freeze_loaded_objects()
    with ExitStack() as stack:
        stack.callback(engine.dispose)
        for start, stop in (
            (maintenance.start, maintenance.stop),
            (price_watch.periodic.start, price_watch.periodic.stop),
            (deletion.start, deletion.stop),
            (sender.periodic.start, sender.periodic.stop),
            (pg_listener.start, pg_listener.stop),
            (loop.start, loop.stop),
            *((each.periodic.start, each.periodic.stop) for each in collectors),
        ):
            start()
            stack.callback(stop)
        pg_listener.check_delivery(engine)
        announce_address(settings.home, address, keys.home_token)
        server.run(sockets=[server_socket])
        if not server.started:  # as when the database went away just now
            raise SystemExit("the controller could not begin to serve; its log says why")


def check_clouds(engine: Engine, clouds: Clouds) -> None:
    """Check that the clouds file leads to all machines there are.

    A cloud that does not answer now is checked again before its first list is believed.

    Raises:
        AccountRefused: An entry leads to another account than before.
        CloudsFileRefused: An entry of which machines may run is missing.
    """
    with engine.connect() as connection:
        missing = vms.clouds_in_use(connection) - {provider.name for provider in clouds}
        # They were priced for this computer: on a rented machine their cap would mean nothing.
        if THIS_COMPUTER not in clouds and jobs.has_unfinished_without_cloud(connection):
            missing |= {THIS_COMPUTER}
    if missing:
        raise CloudsFileRefused(
            f"jobs of {', '.join(sorted(missing))} have not ended, and the clouds file has no "
            "entry of that name: put it back until they have"
        )
    # All at once: one that does not answer takes many seconds.
    with ThreadPoolExecutor(len(clouds)) as threads:
        accounts = list(threads.map(account_of, clouds))
    for provider, account in zip(clouds, accounts, strict=True):
        if account is not None:
            with engine.begin() as connection:
                controllers.check_account(connection, provider.name, account)


def account_of(provider: Provider) -> str | None:
    """Return the account that an entry leads to; None if the cloud does not say now."""
    try:
        return provider.account
    except CloudError as error:
        log.warning("%s does not say which account it leads to: %s", provider.name, error)
        return None


def store_shipped_prices(engine: Engine) -> None:
    """Store the price lists of this version where no newer prices are known."""
    with engine.begin() as connection:
        update = prices.store_prices(connection, shipped_prices(), clock.read(connection))
    for why in update.refused:
        log.warning("a price of this version is not believed: %s", why)


class StreamingServer(uvicorn.Server):
    """A server that ends its streams before it waits for the answers that are not finished."""

    def __init__(self, config: uvicorn.Config, streams: EventStreams) -> None:
        super().__init__(config)
        self.streams = streams

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.streams.close()
        await super().shutdown(sockets)


def http_config(settings: Settings, app: FastAPI) -> uvicorn.Config:
    """Say how HTTP is spoken."""
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=2,
        server_header=False,
        ws="none",
        # Otherwise a client could choose the address it appears to come from, and escape the rate
        # limit.
        proxy_headers=settings.behind_proxy,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )


def bind_port(settings: Settings) -> socket.socket:
    """Bind the port before anything is announced.

    Any free port means first the one of last time: running workers still speak to it.
    """
    # asyncio lets short answers leave at once (TCP_NODELAY) only where the protocol is named; else
    # every answer after a connection's first waits 40 ms for the acknowledgement of its headers.
    server_socket = socket.socket(proto=socket.IPPROTO_TCP)
    server_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if settings.port == 0:
        with suppress(OSError):
            server_socket.bind((settings.host, last_port(settings.home)))
            return server_socket
    try:
        server_socket.bind((settings.host, settings.port))
    except OSError as error:
        raise SystemExit(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; "
            "choose another with --port, or 0 for any"
        ) from error
    return server_socket


def last_port(home: Path) -> int:
    """Return the port announced last, or 0."""
    try:
        url = json.loads((home / "connection.json").read_text())["url"]
        return urlsplit(str(url)).port or 0
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def build_reconciler(
    engine: Engine, keys: ControllerKeys, contact: ControllerContact, clouds: Clouds
) -> Reconciler:
    """Put together what a tick needs."""
    with engine.begin() as connection:
        resource_labels = ResourceLabels(
            controllers.installation_id(connection), keys.label_secret()
        )
    executors = CloudExecutors(MAX_CLOUD_CALLS)
    fleet = Fleet(engine, clouds, contact, resource_labels, executors=executors)
    return Reconciler(fleet, clock.now(engine))


def announce_address(home: Path, address: str, token: str) -> None:
    """Print where the controller is, and leave it where the command line looks.

    The token is shown to who watches a terminal; what is redirected ends up in files.
    """
    path = home / "connection.json"
    handle = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    with os.fdopen(handle, "w") as file:
        json.dump({"url": address, "token": token}, file)
    # A terminal shows the token to the person who started this; a log file would keep it.
    shown = token if sys.stdout.isatty() else f"in {home / 'token'}"
    print(f"scavenger is at {address}  token {shown}")
    print(f"dashboard: {address}/  to open it, signed in: scavenger dashboard", flush=True)


if __name__ == "__main__":
    sys.exit(main())
