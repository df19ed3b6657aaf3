"""Measure how long a wake takes while another user's sparse homes are archived.

The product as `torpor up` starts it, with two users. One has sparse homes without data, each of which costs minutes of CPU
time, and archives all of them at once. The other wakes workspaces: from STANDBY, and from ARCHIVED with a home of a few MB. The
time from the request to RUNNING is measured.

    python bench/fairness.py [--sparse 0,2,10] [--hole-gib 60] [--wakes 5] [--json]
"""

import argparse
import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torpor.cli.client import ApiClient

TORPOR = str(Path(sys.executable).with_name("torpor"))
PROGRAM = ["sh", "-c", "exec python3 -m http.server --bind 127.0.0.1 $PORT"]
PASSWORD = secrets.token_urlsafe(16)
POLL_S = 0.02
PREPARED_WITHIN_S = 120.0
GIVEN_UP_AFTER_S = 300.0
SMALL_HOME_BYTES = 4 << 20


@dataclass(frozen=True)
class Result:
    sparse_homes: int
    standby_s: list[float]
    archived_s: list[float]

    def line(self) -> str:
        woken = f"from STANDBY {words(self.standby_s)}   from ARCHIVED {words(self.archived_s)}"
        return f"{self.sparse_homes:3} sparse homes:  {woken}"


def words(seconds: list[float]) -> str:
    return f"median {statistics.median(seconds):6.2f} s, longest {max(seconds):6.2f} s"


@contextmanager
def up(folder: Path) -> Iterator[tuple[ApiClient, ApiClient]]:
    """The API as each of two users sees it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TORPOR_")}
    ours = {"DATA": str(folder / "data"), "PORT": str(port), "MAX_RUNNING_PER_USER": "50", "UNCONFINED": "true"}
    environment = kept | {f"TORPOR_{name}": value for name, value in ours.items()}
    with (folder / "up.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen([TORPOR, "up"], stdout=subprocess.PIPE, stderr=log, env=environment, text=True)
    try:
        assert process.stdout
        said = next((line for line in process.stdout if line.startswith("torpor is ready")), "")
        assert said, (folder / "up.log").read_text(encoding="utf-8")
        known = json.loads((folder / "data" / "credentials.json").read_text(encoding="utf-8"))
        with ExitStack() as opened:
            first = opened.enter_context(ApiClient(known["url"], known["token"], timeout_s=60.0))
            first.create_user({"username": "sparse", "password": PASSWORD})
            session = opened.enter_context(ApiClient(known["url"], None, timeout_s=60.0))
            session.sign_in("sparse", PASSWORD)
            token = session.make_token({"label": "bench", "scopes": ["read", "use", "manage"]})["token"]
            yield first, opened.enter_context(ApiClient(known["url"], token, timeout_s=60.0))
    finally:
        process.terminate()
        process.communicate(timeout=120)


def until(api: ApiClient, name: str, is_so: Callable[[Any], bool], within_s: float = PREPARED_WITHIN_S) -> Any:
    end = time.monotonic() + within_s
    while not is_so(seen := api.workspace(name)):
        if time.monotonic() > end:
            raise TimeoutError(f"{name}: {json.dumps(seen)}")
        time.sleep(POLL_S)
    return seen


def is_at(phase: str) -> Callable[[Any], bool]:
    return lambda seen: seen["phase"] == phase and seen["operation"] == "NONE"


def make(api: ApiClient, name: str) -> Any:
    api.create({"name": name, "template": "command", "command": PROGRAM, "desired_state": "STANDBY"})
    return until(api, name, is_at("STANDBY"))


def home(folder: Path, seen: Any) -> Path:
    return folder / "data" / "volumes" / f"ws-{seen['id']}-home-{seen['generation']}" / "home"


def wake(api: ApiClient, name: str) -> float:
    began = time.monotonic()
    api.wish(name, "RUNNING")
    try:
        until(api, name, is_at("RUNNING"), GIVEN_UP_AFTER_S)
    except TimeoutError:
        return GIVEN_UP_AFTER_S
    return time.monotonic() - began


def measure(sparse_homes: int, hole_bytes: int, wakes: int) -> Result:
    with tempfile.TemporaryDirectory(prefix="torpor-bench-") as name, up(Path(name)) as (api, other):
        folder = Path(name)
        archived = [f"archived-{number}" for number in range(wakes)]
        for one in archived:
            (home(folder, make(api, one)) / "data").write_bytes(os.urandom(SMALL_HOME_BYTES))
            api.wish(one, "ARCHIVED")
        for one in archived:
            until(api, one, is_at("ARCHIVED"))
        make(api, "standby")
        # The first start warms up the machine and is not counted.
        wake(api, "standby")
        sparse = [f"sparse-{number}" for number in range(sparse_homes)]
        for one in sparse:
            with (home(folder, make(other, one)) / "hole").open("wb") as file:
                file.truncate(hole_bytes)
        for one in sparse:
            other.wish(one, "ARCHIVED")
        for one in sparse[:1]:
            until(other, one, lambda seen: bool(seen["progress"]))
        from_archive, from_standby = [], []
        for one in archived:
            api.wish("standby", "STANDBY")
            until(api, "standby", is_at("STANDBY"))
            from_standby.append(wake(api, "standby"))
            from_archive.append(wake(api, one))
            print(".", end="", file=sys.stderr, flush=True)
        left = [one for one in sparse if not is_at("ARCHIVED")(other.workspace(one))]
        print(f" {len(left)} of {sparse_homes} still being archived at the end", file=sys.stderr)
    return Result(sparse_homes, from_standby, from_archive)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sparse", default="0,2,10", help="how many sparse homes, one run for each")
    parser.add_argument("--hole-gib", type=int, default=60, help="Torpor refuses homes with more than 64")
    parser.add_argument("--wakes", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = [measure(int(count), options.hole_gib << 30, options.wakes) for count in options.sparse.split(",")]
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=1))
        return
    for result in results:
        print(result.line())


if __name__ == "__main__":
    main()
