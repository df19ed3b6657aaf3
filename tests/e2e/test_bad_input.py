"""Bad input gets a clear error and changes nothing."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.product import Product, product

pytestmark = [pytest.mark.e2e, pytest.mark.same_everywhere]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with product(tmp_path_factory.mktemp("bad")) as running:
        running.ok("create", "demo", "--wait")
        yield running


@pytest.fixture(autouse=True)
def nothing_changes(here: Product) -> Iterator[None]:
    before = json.loads(here.ok("list", "--json"))
    yield
    assert json.loads(here.ok("list", "--json")) == before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("create", "Not_A_Label"), "DNS label"),
        (("create", "a--b"), "DNS label"),
        (("create", "-x"), ""),
        (("create", "3f2b8c1e-0000-4000-8000-000000000000"), "form of an id"),
        (("create", "localhost"), "reserved"),
        (("create", "demo"), "already"),
        (("create", "new", "--template", "nonsense"), "terminal"),
        (("create", "new", "--template", "command"), "needs a command"),
        (("create", "new", "--", "sh"), "Leave out the command"),
        (("start", "nobody"), "no workspace 'nobody'"),
        (("show", "nobody"), "no workspace 'nobody'"),
        (("archive", "nobody"), "no workspace 'nobody'"),
        (("delete", "nobody"), "no workspace 'nobody'"),
        (("recover", "demo"), "has no error"),
        (("undelete", "demo"), "not deleted"),
        (("hibernate", "demo"), "No such command"),
    ],
)
def test_an_invalid_command_is_refused(here: Product, words: tuple[str, ...], says: str) -> None:
    done = here.run(*words)
    assert done.returncode in (1, 2)
    assert says in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()


def test_a_broken_settings_file(here: Product, tmp_path: Path) -> None:
    for text, says in (("port = [", "not valid TOML"), ("prot = 1", "prot"), ("port = 99999", "99999")):
        config = tmp_path / "torpor.toml"
        config.write_text(text, encoding="utf-8")
        done = Product(here.data, here.port, {"TORPOR_CONFIG": str(config), "TORPOR_PORT": ""}).run("list")
        assert done.returncode == 2, done.stderr
        assert says in done.stderr.decode()


def test_a_wrong_token(here: Product) -> None:
    done = Product(here.data, here.port, {"TORPOR_TOKEN": "torpor_wrong", "TORPOR_URL": f"http://127.0.0.1:{here.port}"}).run(
        "list"
    )
    assert done.returncode == 1
    assert "token" in done.stderr.decode()


def call(here: Product, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, Any]]:
    token = json.loads((here.data / "credentials.json").read_text())["token"]
    request = urllib.request.Request(
        f"http://127.0.0.1:{here.port}{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {token}", **headers},
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as error:
        return error.code, {"content_type": error.headers["content-type"], **json.loads(error.read())}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("PATCH", "/api/v1/workspaces/demo", {"desired_state": "HIBERNATING"}, 422, "bad_request"),
        ("PATCH", "/api/v1/workspaces/demo", {"desired_state": "DELETED"}, 422, "bad_request"),
        ("PATCH", "/api/v1/workspaces/demo", {"nonsense": 1}, 422, "bad_request"),
        ("PATCH", "/api/v1/workspaces/demo", {"standby_ttl": 0}, 422, "bad_ttl"),
        ("PATCH", "/api/v1/workspaces/demo", {"before_sleep": [""]}, 422, "bad_before_sleep"),
        ("PATCH", "/api/v1/workspaces/demo", {"before_sleep": "git stash"}, 422, "bad_request"),
        ("POST", "/api/v1/workspaces", {"name": "UPPER"}, 422, "bad_name"),
        ("POST", "/api/v1/workspaces", {"name": "demo"}, 409, "name_taken"),
        ("POST", "/api/v1/workspaces", {"name": "new", "template": "nonsense"}, 422, "unknown_template"),
        ("POST", "/api/v1/workspaces", {}, 422, "bad_request"),
        ("GET", "/api/v1/workspaces/nobody", None, 404, "not_found"),
        ("GET", "/api/v1/workspaces/3f2b8c1e-0000-4000-8000-000000000000", None, 404, "not_found"),
        ("GET", "/api/v1/workspaces?cursor=nonsense", None, 422, "bad_cursor"),
        ("GET", "/api/v1/workspaces?phase=NONSENSE", None, 422, "bad_request"),
        ("POST", "/api/v1/workspaces/demo/recover", {}, 409, "not_in_error"),
        ("POST", "/api/v1/workspaces/demo/exec", {"command": ["true"], "stdin": "%"}, 422, "bad_request"),
        ("GET", "/api/v1/nothing", None, 404, "no_such_call"),
        ("GET", "/api/v1/workspaces/a%00b", None, 404, "not_found"),
        ("POST", "/api/v1/login", {"username": "a\0b", "password": "x"}, 422, "bad_request"),
        ("POST", "/api/v1/workspaces", {"name": "new", "template": "command", "command": ["\ud800"]}, 422, "bad_request"),
        ("DELETE", "/api/v1/me", None, 405, "method_not_allowed"),
    ],
)
def test_an_invalid_call_is_refused(here: Product, method: str, path: str, body: Any, status: int, code: str) -> None:
    answered, problem = call(here, method, path, body)
    assert (answered, problem["code"]) == (status, code)
    assert problem["detail"]
    assert problem["content_type"] == "application/problem+json"


def test_a_wrong_token_or_password_is_refused(here: Product) -> None:
    assert call(here, "GET", "/api/v1/workspaces", Authorization="Bearer wrong")[0] == 401
    assert call(here, "GET", "/api/v1/workspaces", Authorization="Basic abc")[0] == 401
    assert call(here, "POST", "/api/v1/login", {"username": "admin", "password": "wrong"})[0] == 401


def test_a_reached_limit_is_reported_with_retry_after(here: Product) -> None:
    created, _ = call(here, "POST", "/api/v1/workspaces", {"name": "second"})
    assert created == 201
    status, problem = call(here, "POST", "/api/v1/workspaces", {"name": "third"})
    assert (status, problem["code"]) == (429, "limit_reached")
    assert problem["retry_after_s"] > 0
    here.ok("delete", "second", "--purge", "--wait")
