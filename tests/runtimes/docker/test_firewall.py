"""The firewall rules of an engine's machine, in a network namespace without an engine."""

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.requirements import must_have
from torpor.domain.networks import BLOCKED
from torpor.runtimes.docker.engine_network import EngineNetwork
from torpor.runtimes.docker.firewall import EngineFirewall, FirewallMissing, comes_first

pytestmark = pytest.mark.anyio

PROGRAMS = ("iptables-nft", "iptables-legacy")
OURS, FORWARD = "TORPOR-12AB", ("-A {} -i torp-1 -j TORPOR-12AB-FWD", "-A {} -o torp-1 -j TORPOR-12AB-FWD")


def rules(parent: str) -> list[str]:
    return [rule.format(parent) for rule in FORWARD]


TO_DOCKER, DOCKERS_OWN = "-A FORWARD -j DOCKER-USER", "-A FORWARD -i docker0 -j ACCEPT"
OTHER_TORPOR = "-A FORWARD -i torp-2 -j TORPOR-34CD-FWD"


@pytest.mark.parametrize(
    ("listing", "first"),
    [
        ([], True),
        ([*rules("FORWARD"), DOCKERS_OWN], True),
        ([OTHER_TORPOR, *rules("FORWARD"), DOCKERS_OWN], True),
        ([DOCKERS_OWN, *rules("FORWARD")], False),
        ([rules("FORWARD")[0], DOCKERS_OWN, rules("FORWARD")[1]], False),
        ([*rules("DOCKER-USER"), TO_DOCKER, DOCKERS_OWN, *rules("FORWARD")], True),
        (["-A DOCKER-USER -j ACCEPT", *rules("DOCKER-USER"), TO_DOCKER, DOCKERS_OWN, *rules("FORWARD")], False),
        (["-A DOCKER-USER -j ACCEPT", *rules("DOCKER-USER"), *rules("FORWARD"), TO_DOCKER, DOCKERS_OWN], True),
        ([*rules("DOCKER-USER"), DOCKERS_OWN, TO_DOCKER, *rules("FORWARD")], False),
        (["-A INPUT -j ACCEPT", "-A INPUT -i torp-1 -j TORPOR-12AB-IN"], False),
        (["-A INPUT -i torp-1 -j TORPOR-12AB-IN", "-A INPUT -j ACCEPT"], True),
    ],
)
def test_rules_come_first_if_no_rule_of_others_is_before_them(listing: list[str], *, first: bool) -> None:
    assert comes_first(listing, OURS) is first


def test_bridges_have_names_that_the_kernel_accepts_and_differ_between_installations() -> None:
    names = {EngineNetwork(name, "a").bridge for name in ("a-workspaces", "a-jobs", "b-workspaces", "x" * 200)}
    assert len(names) == 4
    assert all(len(name) <= 15 and name.startswith("torp-") for name in names)


@pytest.fixture
def namespace() -> Iterator[str]:
    must_have(os.getuid() == 0 and all(map(shutil.which, ("ip", "nsenter", *PROGRAMS))), f"root, {', '.join(PROGRAMS)}")
    name = f"torpor-{secrets.token_hex(4)}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    yield name
    subprocess.run(["ip", "netns", "del", name], check=True)


@pytest.mark.parametrize("program", PROGRAMS)
async def test_the_rules_are_where_those_of_docker_are(namespace: str, program: str) -> None:
    """`iptables` is one of two programs, and Docker may use the other one."""
    prefix = ("nsenter", f"--net=/run/netns/{namespace}")

    def run(*words: str) -> str:
        return subprocess.run([*prefix, *words], check=True, capture_output=True, text=True).stdout

    for words in ("-N DOCKER-USER", "-A DOCKER-USER -j RETURN", "-A FORWARD -j DOCKER-USER", "-P FORWARD DROP"):
        run(program, *words.split())
    before = run(program, "-S")
    networks = EngineNetwork("a-workspaces", "a"), EngineNetwork("a-jobs", "a")
    firewall = EngineFirewall(*networks, blocked=BLOCKED, allowed=("10.1.2.3/32",), nameservers=("10.9.9.9",), prefix=prefix)
    await firewall.examine()
    assert run(program, "-S") == before, "an examination changes nothing"
    await firewall.ensure()
    written = run(program, "-S")
    assert "-d 10.9.9.9/32 -p udp -m udp --dport 53 -j RETURN" in written
    assert written.index("10.1.2.3/32") < written.index("10.0.0.0/8")
    for words in ("-F", "-X DOCKER-USER", "-I FORWARD -j ACCEPT"):
        run(program, *words.split())
    await firewall.ensure()
    restored = run(program, "-S").splitlines()
    assert comes_first(restored, firewall._chain)
    assert [line for line in restored if line.startswith("-A TORPOR-")] == [
        line for line in written.splitlines() if line.startswith("-A TORPOR-")
    ]
    await firewall.remove()
    assert "TORPOR" not in run(program, "-S")


async def test_rules_that_another_program_removes_at_once_are_not_taken_for_written(namespace: str) -> None:
    flushes = '"$@" || exit 1; case "$1" in */iptables-restore) iptables -F;; esac'
    prefix = ("nsenter", f"--net=/run/netns/{namespace}", "sh", "-c", flushes, "sh")
    firewall = EngineFirewall(
        EngineNetwork("a-workspaces", "a"), EngineNetwork("a-jobs", "a"), blocked=BLOCKED, allowed=(), prefix=prefix
    )
    with pytest.raises(FirewallMissing, match="another program"):
        await firewall.ensure()
    with pytest.raises(FirewallMissing, match="another program"):
        await firewall.ensure()
