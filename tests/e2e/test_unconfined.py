"""The real product on a machine that cannot confine workspaces."""

import asyncio
import http.client
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from tests.support.product import NAMESPACES_REFUSED, TORPOR, Product, product, without_confinement
from tests.support.users import person
from torpor.store.database import Database, Role

pytestmark = pytest.mark.e2e

PASSWORD = b"a long enough password\n"
ENDS_WITHIN_S = 120.0


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Product]:
    with product(tmp_path, TORPOR_MAX_RUNNING_PER_USER="9", **without_confinement(tmp_path)) as running:
        yield running


def create_user(here: Product, name: str) -> "subprocess.CompletedProcess[bytes]":
    return here.run("users", "create", name, stdin=PASSWORD)


def doctor_on_users(here: Product) -> str:
    found = {one["what"]: one for one in json.loads(here.ok("doctor", "--json"))["items"]}
    said: str = found["users"]["detail"]
    return said


def test_several_users_are_allowed_only_if_an_operator_accepts_it(here: Product) -> None:
    refused = create_user(here, "eve")
    assert refused.returncode == 1
    said = refused.stderr.decode()
    assert "user 'eve' was not created" in said
    assert NAMESPACES_REFUSED in said, "why"
    assert "--unconfined" in said, "what to do"
    assert [one["username"] for one in json.loads(here.ok("users", "list", "--json"))["items"]] == ["admin"]

    log = here.log()
    assert "not confined on this machine: files and processes" in log
    assert "for one user" in log

    here.stop()
    assert starts(here, "--detach", "--unconfined")[0] == 0
    try:
        assert create_user(here, "eve").returncode == 0
        assert "several users are accepted" in doctor_on_users(here), "the running product knows, the settings do not"
    finally:
        here.ok("down")
    assert "for one user" in doctor_on_users(here), "as the next start without --unconfined will be"

    code, said = starts(here)
    assert code == 1, said
    assert "2 users can sign in" in said
    assert NAMESPACES_REFUSED in said, "why"
    assert "--unconfined" in said, "what to do"


def test_the_missing_confinement_is_reported_to_administrators(here: Product) -> None:
    asked = http.client.HTTPConnection("127.0.0.1", here.port, timeout=30)
    asked.request("GET", "/health/coordinator", headers={"Host": f"localhost:{here.port}"})
    answered = asked.getresponse().read().decode()
    asked.close()
    assert '"members"' in answered
    assert "bwrap" not in answered, "this is for administrators, and anyone may ask this"

    found = {one["what"]: one for one in json.loads(here.ok("doctor", "--json"))["items"]}
    assert not found["confinement: files and processes"]["ok"]
    assert "for one user" in found["users"]["detail"]
    assert "template command" in found["ports"]["detail"]

    warned = here.run("create", "site", "--template", "command", "--", "sh", "-c", "exec python3 -m http.server $PORT")
    assert warned.returncode == 0, warned.stderr
    assert "template command" in warned.stderr.decode()
    quiet = here.run("create", "plain")
    assert (quiet.returncode, quiet.stderr) == (0, b"")
    told = json.loads(here.ok("create", "other", "--template", "command", "--json", "--", "true"))
    assert len(told["warnings"]) == 1


def test_the_doctor_says_when_a_restart_is_enough(here: Product) -> None:
    """Bubblewrap works now, but the running product does not know it yet."""
    by_now = Product(here.data, port=here.port)
    for what in ("files and processes", "network"):
        by_now.must_confine(what)
    found = {one["what"]: one for one in json.loads(by_now.ok("doctor", "--json"))["items"]}
    assert "for one user" in found["users"]["detail"]
    assert "restart Torpor" in found["users"]["advice"]


@pytest.mark.anyio
async def test_serve_with_several_users_needs_the_same(database_url: str, redis_url: str, tmp_path: Path) -> None:
    database = await Database.open(database_url, Role.SERVICE)
    for name in ("ada", "bob"):
        await person(database, name)
    await database.close()
    here = Product(tmp_path / "data", environment=without_confinement(tmp_path))
    here.environment |= {
        "TORPOR_DATABASE_URL": database_url,
        "TORPOR_REDIS_URL": redis_url,
        "TORPOR_ARCHIVE_URL": (tmp_path / "archives").as_uri(),
    }
    serve = ("serve", "--role", "api,proxy,controller")
    refused = await asyncio.to_thread(here.run, *serve, timeout_s=ENDS_WITHIN_S)
    assert refused.returncode == 1, refused.stderr
    assert "2 users can sign in" in refused.stderr.decode()

    served = subprocess.Popen(  # noqa: ASYNC220 - nothing else runs here meanwhile
        [TORPOR, *serve, "--unconfined"], env=here.env(), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert served.stdout
    try:
        assert (await asyncio.to_thread(served.stdout.readline)).startswith(b"torpor is ready at")
        connection = await asyncpg.connect(database_url)
        row = await connection.fetchrow("SELECT missing, is_accepted, port_warning FROM controllers")
        await connection.close()
        assert {"files and processes", "network"} <= {one["what"] for one in json.loads(row["missing"])}
        assert NAMESPACES_REFUSED in row["missing"]
        assert (row["is_accepted"], "template command" in row["port_warning"]) == (True, True)
    finally:
        served.terminate()
        await asyncio.to_thread(served.wait, ENDS_WITHIN_S)
        served.stdout.close()


def starts(here: Product, *words: str) -> tuple[int, str]:
    """The exit code of `torpor up`, and its standard error."""
    done = subprocess.run(
        [TORPOR, "up", *words], env=here.env(), cwd=here.data.parent, capture_output=True, timeout=ENDS_WITHIN_S, check=False
    )
    return done.returncode, done.stderr.decode()
