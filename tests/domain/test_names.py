"""Every accepted name is safe, and only names of Torpor's volumes are parsed as such."""

import re
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torpor.domain.errors import Refused
from torpor.domain.names import RESERVED, check_name, is_id, parse_volume_name, volume_name

DNS_1123 = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
ids = st.uuids().map(str)
generations = st.integers(min_value=1, max_value=999_999_999)


@pytest.mark.parametrize("name", ["a", "7", "ada", "my-home-2", "a" * 40, "0-0"])
def test_good_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "-a",
        "a-",
        "a--b",
        "xn--bcher-kva",
        "Ada",
        "a.b",
        "a_b",
        "a b",
        "ada\n",
        "\u00e4da",
        "\u0661",
        "a" * 41,
        *sorted(RESERVED),
        "0190c0de-0000-7000-8000-000000000001",
    ],
)
def test_bad_names_are_refused_with_what_is_allowed(name: str) -> None:
    with pytest.raises(Refused) as refused:
        check_name(name)
    assert refused.value.code == "bad_name"
    assert repr(name) in refused.value.message


@given(st.text(max_size=50) | st.from_regex(r"[a-z0-9-]{1,45}", fullmatch=True))
def test_every_accepted_name_is_a_dns_label_and_not_an_id(name: str) -> None:
    try:
        check_name(name)
    except Refused:
        return
    assert DNS_1123.fullmatch(name)
    assert len(name) <= 40
    assert "--" not in name
    assert not is_id(name)


@given(ids, generations)
def test_names_of_parts_are_dns_labels_and_can_be_read_back(workspace_id: str, generation: int) -> None:
    name = volume_name(workspace_id, generation)
    assert name == f"ws-{workspace_id}-home-{generation}"
    assert DNS_1123.fullmatch(name)
    assert len(name) <= 63
    assert parse_volume_name(name) == (workspace_id, generation)


@given(st.tuples(ids, generations), st.tuples(ids, generations))
def test_different_homes_have_different_names(one: tuple[str, int], other: tuple[str, int]) -> None:
    assert (volume_name(*one) == volume_name(*other)) == (one == other)


SOME = str(uuid.UUID(int=1))


@pytest.mark.parametrize(
    "name",
    [
        "",
        f"ws-{SOME}",
        f"ws-{SOME}-home-",
        f"ws-{SOME}-home-0",
        f"ws-{SOME}-home-01",
        f"ws-{SOME}-home-1\n",
        f"ws-{SOME}-home-1.part",
        f"x-ws-{SOME}-home-1",
        f"ws-{SOME.upper().replace('0', 'A')}-home-1",
        f"ws-{SOME}-home-\u0661",
        "ws-ada-home-1",
    ],
)
def test_a_foreign_volume_name_is_not_parsed(name: str) -> None:
    assert parse_volume_name(name) is None


@given(st.text(max_size=80))
def test_a_parsed_volume_name_is_written_the_same(name: str) -> None:
    parsed = parse_volume_name(name)
    assert parsed is None or volume_name(*parsed) == name
