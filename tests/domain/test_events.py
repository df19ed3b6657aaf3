"""An event is the same after it passed the bus, and only its own installation reads it."""

import json
from datetime import UTC, datetime

import pytest

from torpor.domain.events import EventKind, EventMessage, event_body, from_message, to_message

HERE, ELSEWHERE = "installation-1", "installation-2"
WORKSPACE = {"id": "w", "name": "demo", "owner": "ada", "shares": {"bob": "use"}, "wish_version": 4}
TOLD = EventMessage(
    id=7,
    after=6,
    seq=12,
    workspace_id="w",
    owner_id="ada",
    body=event_body(EventKind.STATE_CHANGED, 7, at=datetime(2026, 1, 1, tzinfo=UTC), workspace=WORKSPACE),
    unshared=frozenset({"eve"}),
)


def test_an_event_survives_encoding() -> None:
    assert from_message(to_message(TOLD, HERE), HERE) == TOLD


def test_an_event_is_for_the_owner_and_users_with_a_share() -> None:
    assert TOLD.usernames == {"ada", "bob"}


def test_an_event_without_shares_is_read() -> None:
    read = json.loads(to_message(TOLD, HERE))
    del read["unshared"], read["workspace"]["shares"]
    heard = from_message(json.dumps(read).encode(), HERE)
    assert heard is not None
    assert not heard.unshared
    assert heard.usernames == {"ada"}


def test_an_event_of_another_installation_is_ignored() -> None:
    assert from_message(to_message(TOLD, ELSEWHERE), HERE) is None


@pytest.mark.parametrize("missing", ["installation", "id", "after", "owner_id", "seq", "event", "workspace"])
def test_an_event_with_a_missing_field_is_refused(missing: str) -> None:
    read = json.loads(to_message(TOLD, HERE))
    del read[missing]
    with pytest.raises(ValueError):
        from_message(json.dumps(read).encode(), HERE)


@pytest.mark.parametrize("field", ["id", "after", "seq", "event", "workspace"])
def test_an_event_with_an_invalid_field_is_refused(field: str) -> None:
    read = {**json.loads(to_message(TOLD, HERE)), field: "nonsense"}
    with pytest.raises(ValueError):
        from_message(json.dumps(read).encode(), HERE)
