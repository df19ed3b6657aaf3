"""References of images are read as Docker reads them, and a typo is refused with what to write instead."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from torpor.domain.errors import Refused
from torpor.domain.image_reference import ImageReference, image_fault, parse_image

DIGEST = f"sha256:{'0a' * 32}"


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        ("python", "docker.io/library/python:latest"),
        ("python:3.12-slim", "docker.io/library/python:3.12-slim"),
        ("docker.io/python", "docker.io/library/python:latest"),
        ("index.docker.io/team/app:1", "docker.io/team/app:1"),
        ("team/app", "docker.io/team/app:latest"),
        ("localhost/app", "localhost/app:latest"),
        ("localhost:5000/a/b:x", "localhost:5000/a/b:x"),
        ("127.0.0.1:5000/app", "127.0.0.1:5000/app:latest"),
        ("[::1]:5000/app", "[::1]:5000/app:latest"),
        ("registry.example.com/a/b/c_d/e__f/g-h.i:V1", "registry.example.com/a/b/c_d/e__f/g-h.i:V1"),
        (f"python@{DIGEST}", f"docker.io/library/python@{DIGEST}"),
        (f"a.example:8443/b:tag@{DIGEST}", f"a.example:8443/b@{DIGEST}"),
    ],
)
def test_a_reference_is_normalized(text: str, normalized: str) -> None:
    assert str(parse_image(text)) == normalized
    assert str(parse_image(normalized)) == normalized, "and again"
    assert image_fault(text) is None


def test_the_parts_of_a_reference() -> None:
    assert parse_image("r.example:5000/a/b:1") == ImageReference("r.example:5000", "a/b", "1")
    pinned = parse_image(f"a:ignored@{DIGEST}")
    assert (pinned.repository, pinned.version) == ("docker.io/library/a", DIGEST)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "1 to 512 characters"),
        ("a" * 513, "1 to 512 characters"),
        ("a" * 300, "more than 255"),
        ("https://registry.example.com/app", "leave out https://"),
        ("Python:3", "write 'python'"),
        ("pyth on", "' ' is not allowed"),
        ("pythön", "'ö' is not allowed"),
        ("a//b", "'' is not a part of a name"),
        ("-a", "'-a' is not a part"),
        ("a:", "'' is not a tag"),
        ("a:b:c", "'b:c' is not a tag"),
        ("a:.x", "'.x' is not a tag"),
        ("a@sha256:12", "64 hexadecimal"),
        ("a@latest", "64 hexadecimal"),
        ("r.example:99999/a", "no valid port"),
        ("r.example:/a", "no valid port"),
        ("r..example/a", "not the host of a registry"),
        ("-r.example/a", "not the host of a registry"),
    ],
)
def test_a_typo_is_refused_with_its_reason(text: str, fault: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_image(text)
    assert refused.value.code == "bad_image"
    assert fault in refused.value.message
    assert fault in str(image_fault(text))


def test_only_text_is_a_reference() -> None:
    assert "reference of an image" in str(image_fault(7))


@given(some.text(alphabet="ab./:@-_[]A 1", max_size=12))
def test_every_text_is_read_or_refused_and_reading_it_again_changes_nothing(text: str) -> None:
    try:
        read = parse_image(text)
    except Refused:
        return
    assert parse_image(str(read)) == read
