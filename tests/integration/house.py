"""The API on a real database, and principals of every role and project that send it requests."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient
from sqlalchemy import Engine, select

from scavenger.models.performance import fit_performance
from scavenger.planning.transfer import StoredModel
from scavenger.schemas.access import UserRole
from scavenger.schemas.problems import ProblemView
from service.api.dependencies import AppState
from service.app import build_app
from service.auth.tokens import ControllerKeys, TokenDigest, make_token
from service.clouds.storage import CheckpointStorage
from service.dashboard_files import DashboardFiles, StaticFile
from service.db import access as tokens
from service.db import packages, plans, stored_models, webhooks
from service.db.access import StoredToken
from service.db.schema import audit
from service.outbound import OutboundClient
from tests.builders import HERE, NOW, document, observation, plan_view, spec
from tests.contract.host import CODE, CODE_SHA256, EVERY_NAME_IS_PUBLIC, PLAN, unhurried, webhook

KEYS = ControllerKeys(home_token="a word from before", secret="s" * 48)
SCRIPT = StaticFile.of(b"", ".js")
DASHBOARD = DashboardFiles(SCRIPT, {"a.js": SCRIPT})
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class Ahead(AppState):
    """A state whose clock is ahead."""

    ahead: timedelta = timedelta(0)

    def now(self) -> datetime:
        return datetime.now(UTC) + self.ahead


class House:
    """The API on a real database, with a job of the project alpha, and tokens on demand.

    Every project has the same code.
    """

    def __init__(self, engine: Engine, stack: ExitStack) -> None:
        self.engine, self.stack = engine, stack
        self.client = self.open()
        self.tokens: dict[tuple[str, str], str] = {}
        self.job = self.submit("alpha")
        with engine.begin() as connection:
            for project in ("alpha", "beta", "default"):
                packages.store(connection, project, CODE_SHA256, CODE, datetime.now(UTC))
            plans.store(
                connection, "alpha", spec(), plan_view(id=PLAN, expires_at=datetime.now(UTC)), NOW
            )

    def open(
        self,
        ahead: timedelta = timedelta(0),
        outbound: OutboundClient = EVERY_NAME_IS_PUBLIC,
        **options: Any,
    ) -> TestClient:
        storage = CheckpointStorage(Path("/srv"))
        facts: dict[str, Any] = {"dashboard": DASHBOARD, "outbound": outbound}
        facts |= {name: options.pop(name) for name in ("dashboard", "is_https") if name in options}
        world = Ahead(self.engine, HERE, storage, ahead=ahead, ca=b"ours", **facts)
        app = build_app(world, KEYS, **({"limiter": unhurried()} | options))
        return self.stack.enter_context(TestClient(app, raise_server_exceptions=False))

    def token(self, role: str = "admin", project: str = "alpha", **changes: Any) -> str:
        """Return the token of a role in a project, made once."""
        if changes or (role, project) not in self.tokens:
            made, now = make_token(), datetime.now(UTC)
            facts = {"created_at": now, "created_by": "test", **changes}
            credential = TokenDigest.of(made)
            token = StoredToken(
                id=credential.id, name=f"{role} of", project=project, role=UserRole(role), **facts
            )
            with self.engine.begin() as connection:
                tokens.store_token(connection, credential, token)
            self.tokens[role, project] = made
        return self.tokens[role, project]

    def ask(self, method: str, path: str, token: str, **options: Any) -> Any:
        headers = {"Authorization": f"Bearer {token}"} | options.pop("headers", {})
        return self.client.request(method, path, headers=headers, **options)

    def submit(self, project: str) -> str:
        answer = self.ask("POST", "/v1/jobs", self.token("submitter", project), json=document())
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def fill(self, template: str) -> str:
        """Return a path of the route, about what belongs to the project alpha."""
        prey = TokenDigest.of(self.token("viewer", "alpha")).id
        named = {"{job}": self.job, "{token}": prey, "{problem}": "not-found"}
        if "{webhook}" in template:
            hook, delivery = self.webhook()
            named |= {"{webhook}": hook, "{delivery}": str(delivery)}
        named |= {"{sha256}": CODE_SHA256, "{page:dashboard_path}": "jobs", "{asset:path}": "a.js"}
        if "{signature:signature}" in template:
            named["{signature:signature}"] = self.model()
        named |= {"{plan}": PLAN}
        return "/".join(named.get(part, part) for part in template.split("/"))

    def model(self, project: str = "alpha") -> str:
        """Store a model of a project as it is now, and return its signature."""
        seen = tuple(observation(k, b) for k, b in ((1, 32), (1, 128), (2, 128), (2, 32)))
        laws, signature = fit_performance(seen, 1437, 32, None), "digits/mlp|1437|none|local"
        stored = StoredModel(signature, laws, seen, {}, 1)
        with self.engine.begin() as connection:
            stored_models.store(connection, project, "digits/mlp", stored, datetime.now(UTC))
        return signature

    def webhook(self) -> tuple[str, int]:
        """Return a webhook of the project alpha, and the number of one of its deliveries."""
        there = webhook(project="alpha")
        with self.engine.begin() as connection:
            if webhooks.find(connection, there.id) is None:
                webhooks.create(connection, there)
                webhooks.request_delivery(connection, there.id, datetime.now(UTC))
            (delivery,) = webhooks.deliveries_before(connection, there.id, 2**40, 1)
        return there.id, delivery.number

    def written(self) -> list[Mapping[str, Any]]:
        with self.engine.connect() as connection:
            query = select(audit).order_by(audit.c.number)
            return [dict(row) for row in connection.execute(query).mappings()]


def code_of(answer: Any) -> str:
    return ProblemView.model_validate_json(answer.text).code
