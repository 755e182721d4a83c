"""What no file of the controller may contain."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Who may open a connection, and to whom: the one guarded client; the port we listen on; a free
# port for the database; clouds, in the files that call their SDKs.
SPEAKERS = {
    "service/outbound.py",
    "service/__main__.py",
    "service/postgres/server.py",
    "service/clouds/aws.py",
    "service/clouds/aws_store.py",
    "service/clouds/google_compute.py",
    "service/clouds/google_rights.py",
    "service/clouds/google_store.py",
    "service/background.py",  # a pair of sockets by which one thread wakes another
}
NETWORK = {
    *("socket", "ssl", "http.client", "urllib.request", "urllib3", "requests", "httpx", "httpx2"),
    *("httpcore", "aiohttp", "ftplib", "smtplib", "telnetlib", "xmlrpc", "websockets", "boto3"),
    *("botocore", "google.cloud", "paramiko"),
}
PICKLES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle"}
CODE = {"eval", "exec", "compile", "__import__"}
LOADERS = {("torch", "load"), ("numpy", "load"), ("np", "load"), ("yaml", "load")}
UNSAFE_YAML = {"Loader", "FullLoader", "UnsafeLoader", "CLoader", "unsafe_load", "full_load"}
FILES = {"os", "pathlib", "shutil", "io", "tempfile", "glob", "subprocess"}


def sources(*folders: str) -> list[Path]:
    return [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]


def trees(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    for file in sources(*folders):
        yield str(file.relative_to(ROOT)), ast.parse(file.read_text())


def imported(tree: ast.Module) -> set[str]:
    """Every module a file imports, and every name it takes from one, dotted."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def touched(tree: ast.Module, forbidden: set[str]) -> set[str]:
    """What a file imports of forbidden modules, or from inside them."""
    return {
        name
        for name in imported(tree)
        if any(name == one or name.startswith(f"{one}.") for one in forbidden)
    }


def calls(tree: ast.Module) -> Iterator[str]:
    """The functions that are called, as they are written."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)


def pickling(tree: ast.Module) -> set[str]:
    """What a file does that could run code out of data."""
    called = set(calls(tree))
    loaded = {f"{module}.{name}" for module, name in LOADERS} & called
    yaml = {
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in UNSAFE_YAML
        and ast.unparse(node.value) == "yaml"
    }
    return touched(tree, PICKLES) | (called & CODE) | loaded | yaml


def reaching(tree: ast.Module) -> set[str]:
    """What a file does that could turn text into a file."""
    return touched(tree, FILES) | ({"open"} & set(calls(tree)))


def test_only_those_that_are_named_open_connections() -> None:
    found = {name: touched(tree, NETWORK) for name, tree in trees("service")}
    assert {name: what for name, what in found.items() if what and name not in SPEAKERS} == {}


def test_nothing_of_the_controller_runs_code_out_of_data() -> None:
    found = {name: pickling(tree) for name, tree in trees("service", "scavenger", "migrations")}
    assert {name: what for name, what in found.items() if what} == {}


# A file without a name, in which code is collected until its hash is known, and text in memory.
SPOOL = {
    "service/api/routes/code.py": {"tempfile", "tempfile.SpooledTemporaryFile"},
    "service/api/routes/telemetry.py": {"io", "io.StringIO"},
}


def test_no_endpoint_knows_of_files() -> None:
    found = {name: reaching(tree) for name, tree in trees("service/api")}
    assert {name: what for name, what in found.items() if what} == SPOOL


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import httpx", {"httpx"}),
        ("from urllib import request", {"urllib.request"}),
        ("import urllib.request as away", {"urllib.request"}),
        (
            "def f():\n    from socket import create_connection",
            {"socket", "socket.create_connection"},
        ),
        ("from urllib.parse import urlsplit", set()),
        ("import socketserver_like", set()),
    ],
)
def test_connections_are_recognised(code: str, found: set[str]) -> None:
    assert touched(ast.parse(code), NETWORK) == found


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "def f():\n    import joblib",
        "eval('1')",
        "exec(text)",
        "torch.load(file)",
        "np.load(file, allow_pickle=True)",
        "yaml.load(text, Loader=x)",
        "yaml.compose(text, Loader=yaml.UnsafeLoader)",
        "yaml.unsafe_load(text)",
    ],
)
def test_code_out_of_data_is_recognised(code: str) -> None:
    assert pickling(ast.parse(code))


@pytest.mark.parametrize("code", ["import os", "from pathlib import Path", "open(name)"])
def test_files_are_recognised(code: str) -> None:
    assert reaching(ast.parse(code))
