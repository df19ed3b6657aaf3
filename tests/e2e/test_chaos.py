"""Every home survives any number of kills at any moment.

Seeded: `CHAOS_SEED=... CHAOS_ROUNDS=... make test-deep` repeats a run. The test requests random states and kills the product
with -9 at random moments. At the end each requested state is reached, and every tree is unchanged.
"""

import os
import random
import time
from pathlib import Path

import pytest

from tests.support.product import Product, product
from torpor.archives.tree import tree_root

pytestmark = pytest.mark.deep

NAMES = ("one", "two", "three")
SERVE_ROOT = "cd /; exec python3 -m http.server --bind 127.0.0.1 $PORT"
VERBS = {"start": "RUNNING", "stop": "STANDBY", "archive": "ARCHIVED"}


def fill(home: Path, dice: random.Random) -> None:
    owner = home.stat()
    for number in range(40):
        path = home / f"file-{number}"
        path.write_bytes(dice.randbytes(dice.choice((10, 10_000, 3_000_000))))
        os.chown(path, owner.st_uid, owner.st_gid)


def test_every_home_survives(tmp_path: Path) -> None:
    seed = int(os.environ.get("CHAOS_SEED", time.time_ns() % 1_000_000))
    rounds = int(os.environ.get("CHAOS_ROUNDS", "12"))
    print(f"\nrepeat with CHAOS_SEED={seed} CHAOS_ROUNDS={rounds}")
    dice = random.Random(seed)
    with product(tmp_path, TORPOR_MAX_RUNNING_PER_USER="10") as here:
        roots = {}
        for name in NAMES:
            # A program that writes no files in its home, so that the tree stays the same.
            here.ok("create", name, "--template", "command", "--wait", "--", "sh", "-c", SERVE_ROOT)
            fill(here.home(here.show(name)), dice)
            here.ok("stop", name, "--wait")
            roots[name] = tree_root(here.home(here.show(name)))
        for _ in range(rounds):
            wished = throw_wishes(here, dice)
            time.sleep(dice.uniform(0, 1.5))
            here.kill()
            here.up()
            if dice.random() < 0.5:
                wished = throw_wishes(here, dice)
            for name, state in wished.items():
                reached(here, name, state)
        for name in NAMES:
            here.ok("stop", name, "--wait")
            assert tree_root(here.home(here.show(name))) == roots[name], f"{name} with CHAOS_SEED={seed}"
        volumes = [path.name for path in (here.data / "volumes").iterdir() if path.name.startswith("ws-")]
        assert len(volumes) == len(NAMES), volumes


def throw_wishes(here: Product, dice: random.Random) -> dict[str, str]:
    """For some workspaces, for some twice; the last request for each counts."""
    wished = {}
    for name in dice.choices(NAMES, k=dice.randint(3, 6)):
        verb = dice.choice(list(VERBS))
        here.ok(verb, name)
        wished[name] = VERBS[verb]
        time.sleep(dice.uniform(0, 0.4))
    return wished


def reached(here: Product, name: str, state: str) -> None:
    here.until(name, lambda seen: seen["phase"] == state and seen["operation"] == "NONE", within_s=90)
