"""Which images an installation runs."""

import pytest

from torpor.domain.errors import Refused
from torpor.domain.image_policy import ANY_IMAGE, NO_IMAGES, ImagePolicy, parse_allowlist

DIGEST = f"sha256:{'0a' * 32}"


def test_a_runtime_of_processes_runs_no_image() -> None:
    with pytest.raises(Refused, match=r"runs programs of its machine.*'python'.*setting `runtime`") as refused:
        NO_IMAGES.admit("python")
    assert refused.value.code == "images_not_supported"


def test_without_an_allowlist_every_image_is_allowed() -> None:
    assert str(ANY_IMAGE.admit("anything.example/x")) == "anything.example/x:latest"
    with pytest.raises(Refused, match="not the reference"):
        ANY_IMAGE.admit("Anything")


@pytest.mark.parametrize(
    ("image", "is_allowed"),
    [
        ("python", True),
        ("docker.io/library/python:3", True),
        (f"python@{DIGEST}", True),
        ("team/python", False),
        ("docker.io.evil.example/library/python", False),
        ("localhost/docker.io/library/python", False),
        ("r.example:5000/team/a:1", True),
        ("r.example:5000/team/deep/a:1", True),
        ("r.example:5000/teams/a:1", False),
        ("r.example/team/a:1", False),
        ("exact.example/a:1", True),
        ("exact.example/a:2", False),
        (f"exact.example/a:1@{DIGEST}", False),
        ("DOCKER.io/library/python", False),
    ],
)
def test_the_normalized_reference_is_compared_with_the_patterns(image: str, is_allowed: bool) -> None:
    policy = ImagePolicy(True, True, parse_allowlist(" docker.io/library/*,r.example:5000/team/* , exact.example/a:1,"))
    if is_allowed:
        policy.admit(image)
        return
    with pytest.raises(Refused, match=r"exact\.example/a:1\. An administrator.*image_allowlist") as refused:
        policy.admit(image)
    assert refused.value.code == "image_not_allowed"


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"write 'docker\.io/library/python:3'"):
        parse_allowlist("python:3")
    assert parse_allowlist("*") == ("*",)
    assert parse_allowlist("") == ()
