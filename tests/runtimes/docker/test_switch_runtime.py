"""Move an installation from an engine to the process runtime and back: `torpor switch-runtime`, as a user runs it."""

import pytest

from tests.support.product import Product

WRITE = """
import os
os.umask(0o22)
os.makedirs("notes/.ssh", mode=0o700)
os.makedirs("notes/deep/er")
open("notes/noise", "wb").write(os.urandom(300_000))
os.close(os.open("notes/.ssh/id", os.O_CREAT | os.O_WRONLY, 0o600))
os.link("notes/noise", "notes/deep/same")
os.symlink("../noise", "notes/deep/link")
os.utime("notes/deep/er", ns=(1_577_934_245_123_456_789, 1_577_934_245_123_456_789))
"""
# The files, without what a runtime decides: the number of the user.
READ = """
import hashlib, os
home = os.stat(".")
for folder, folders, files in os.walk("notes"):
    folders.sort()
    for name in sorted([*folders, *files]):
        path = os.path.join(folder, name)
        seen = os.lstat(path)
        is_file = os.path.isfile(path) and not os.path.islink(path)
        content = hashlib.sha256(open(path, "rb").read()).hexdigest() if is_file else ""
        link = os.readlink(path) if os.path.islink(path) else ""
        is_ours = (seen.st_uid, seen.st_gid) == (home.st_uid, home.st_gid)
        print(path, oct(seen.st_mode), seen.st_mtime_ns, seen.st_nlink, is_ours, content, link)
"""
PYTHON_IN_CONTAINER = "/opt/torpor/bin/python3"


def python(product: Product) -> str:
    return "python3" if product.environment["TORPOR_RUNTIME"] == "process" else PYTHON_IN_CONTAINER


def home_of(product: Product, name: str) -> str:
    seen = product.ok("exec", name, "--", python(product), "-c", READ)
    assert "notes/deep/same" in seen
    assert "False" not in seen, seen
    return seen


def restarted(product: Product, runtime: str) -> None:
    product.stop()
    product.environment["TORPOR_RUNTIME"] = runtime
    product.up()


def moved(product: Product, runtime: str) -> None:
    said = product.run("switch-runtime", runtime, "--yes")
    assert said.returncode == 0, said.stderr.decode()
    assert f"start it with TORPOR_RUNTIME={runtime}" in said.stdout.decode()
    assert {product.show(name)["phase"] for name in ("one", "two")} == {"ARCHIVED"}
    refused = product.run("start", "two")
    assert refused.returncode == 1
    assert "being moved to the runtime" in refused.stderr.decode()
    restarted(product, runtime)
    product.until("one", lambda shown: bool(shown["phase"] == "RUNNING"), within_s=120)
    product.until("two", lambda shown: bool(shown["phase"] == "STANDBY"), within_s=120)


@pytest.mark.both_engines
@pytest.mark.deep_on_podman
def test_homes_are_the_same_after_a_move_and_back(product: Product, request: pytest.FixtureRequest) -> None:
    engine = request.node.callspec.params["engine"]
    product.ok("create", "one", "--wait")
    product.ok("exec", "one", "--", python(product), "-c", WRITE)
    product.ok("create", "two", "--wait")
    product.ok("stop", "two", "--wait")
    before = home_of(product, "one")

    moved(product, "process")
    assert home_of(product, "one") == before
    product.stop()
    product.environment["TORPOR_RUNTIME"] = engine
    elsewhere = product.run("up")
    assert elsewhere.returncode == 1, "the homes are at the other runtime"
    assert f"`torpor switch-runtime {engine}`" in elsewhere.stderr.decode()
    product.environment["TORPOR_RUNTIME"] = "process"
    product.up()
    product.until("one", lambda shown: bool(shown["phase"] == "RUNNING"))

    moved(product, engine)
    assert home_of(product, "one") == before
    assert product.ok("switch-runtime").startswith(f"The homes are at the runtime {engine}:")


def test_a_move_can_be_cancelled_at_both_ends(product: Product) -> None:
    product.ok("create", "one", "--wait")
    product.ok("create", "lab", "--template", "image", "--image", product.environment["TORPOR_WORKSPACE_IMAGE"], "--wait")
    seen = product.ok("switch-runtime", "process", "--dry-run")
    assert "lab (admin): The runtime of this installation runs programs of its machine" in seen
    product.ok("switch-runtime", "process", "--yes")
    restarted(product, "docker")  # the operator stays
    assert "All workspaces are archived" in product.ok("switch-runtime")
    product.ok("switch-runtime", "--cancel")
    for name in ("one", "lab"):
        product.until(name, lambda shown: bool(shown["phase"] == "RUNNING"), within_s=120)
    assert product.run("switch-runtime", "--cancel").returncode == 1
    assert b"choose one of process, docker, podman, kubernetes" in product.run("switch-runtime", "nowhere", "--yes").stderr
