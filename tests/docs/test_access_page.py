"""The page about access lists every route with the permission it states, and no other."""

from __future__ import annotations

import re

from service.auth.permissions import (
    BootstrapOnly,
    Permission,
    PublicAccess,
    UsersFromRole,
    WorkersOnly,
)
from tests.contract.host import ROUTES
from tests.docs.test_docs import DOCS

ROW = re.compile(r"^\| `(GET|POST|PUT|PATCH|DELETE) (\S+)` \| (.+) \|$", re.MULTILINE)


def in_words(permission: Permission) -> str:
    match permission:
        case PublicAccess():
            return "no token"
        case WorkersOnly():
            return "a worker token"
        case BootstrapOnly():
            return "a bootstrap token"
        case UsersFromRole(role, is_of_all):
            return f"`{role}`{' *' if is_of_all else ''}"


def test_the_page_lists_the_permission_of_every_route() -> None:
    rows = {
        (method, path): words
        for method, path, words in ROW.findall((DOCS / "access.md").read_text())
    }
    # Without what a router wants to know of a parameter: {job} for {job:path}.
    written = {(method, re.sub(r":\w+}", "}", path)): who for (method, path), who in ROUTES.items()}
    assert rows == {route: in_words(permission) for route, permission in written.items()}
