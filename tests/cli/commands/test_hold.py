"""Holds are requested, listed and ended with the given values."""

from typing import Any

import pytest

from tests.cli.conftest import Torpor
from tests.cli.records import AT
from tests.support.scripted_api import ScriptedApi

LEASE: dict[str, Any] = {
    "id": "5b5c1f0e-8a51-4c38-9a53-0d8f2a6f5c11",
    "reason": "a long build",
    "created_by": "admin",
    "created_at": AT,
    "expires_at": "2126-03-01T12:00:00Z",
}


@pytest.mark.parametrize(
    ("said", "seconds"), [("90s", 90), ("5m", 300), ("1h", 3600), ("2d", 172_800), ("1.5h", 5400), (" 3 m ", 180)]
)
def test_a_hold_is_requested(torpor: Torpor, api: ScriptedApi, said: str, seconds: float) -> None:
    api.answer("POST /workspaces/demo/leases", LEASE, status=201)
    ended = torpor("hold", "demo", "--for", said, "--reason", "a long build")
    assert ended.code == 0
    assert api.asked[0].body == {"reason": "a long build", "seconds": seconds}
    assert f"until {LEASE['expires_at']}" in ended.text
    assert f"torpor hold demo --end {LEASE['id']}" in ended.text
    assert torpor("hold", "demo", "--for", said, "--reason", "a long build", "--json").json == LEASE


def test_holds_are_listed(torpor: Torpor, api: ScriptedApi) -> None:
    api.answer("GET /workspaces/demo/leases", {"items": [LEASE]})
    listed = torpor("hold", "demo").text
    assert LEASE["id"] in listed
    assert "a long build" in listed
    assert torpor("hold", "demo", "--json").json == {"items": [LEASE]}
    api.answer("GET /workspaces/demo/leases", {"items": []})
    assert torpor("hold", "demo").text == "Nothing keeps this workspace awake.\n"


def test_holds_are_ended(torpor: Torpor, api: ScriptedApi) -> None:
    api.answer("DELETE /workspaces/demo/leases", b"", status=204)
    api.answer("DELETE /workspaces/demo/leases/a%2Fb", b"", status=204)
    api.answer("GET /workspaces/demo/leases", {"items": []})
    assert torpor("hold", "demo", "--end", "all").text == "nothing keeps demo awake any more\n"
    assert torpor("hold", "demo", "--end", "a/b").text == "a/b no longer keeps demo awake\n"
    assert torpor("hold", "demo", "--end", "all", "--json").json == {"items": []}
    api.answer("GET /workspaces/demo/leases", {"items": [LEASE]})
    assert "others still do" in torpor("hold", "demo", "--end", "all").text
    assert [asked.target for asked in api.asked if asked.method == "DELETE"] == [
        "/workspaces/demo/leases",
        "/workspaces/demo/leases/a%2Fb",
        "/workspaces/demo/leases",
        "/workspaces/demo/leases",
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("--for", "1h"),
        ("--reason", "why"),
        ("--for", "soon", "--reason", "why"),
        ("--for", "60", "--reason", "why"),
        ("--for", "-1h", "--reason", "why"),
        ("--for", "1h", "--reason", "why", "--end", "all"),
        ("--end", "all", "--reason", "why"),
    ],
)
def test_conflicting_options_are_refused(torpor: Torpor, api: ScriptedApi, words: tuple[str, ...]) -> None:
    ended = torpor("hold", "demo", *words)
    assert ended.code == 2
    assert ended.said.startswith("torpor: ")
    assert api.asked == []


def test_a_refusal_is_passed_on(torpor: Torpor, api: ScriptedApi) -> None:
    api.refuse("POST /workspaces/demo/leases", 422, "bad_lease", "seconds is 864000; allowed are 1 to 604800 (7 days)")
    ended = torpor("hold", "demo", "--for", "10d", "--reason", "why")
    assert ended.code == 1
    assert "allowed are 1 to 604800" in ended.said
