"""Credentials come from a file in the format of Docker's config.json, and are never part of an error."""

import base64
import json
from pathlib import Path

import pytest

from torpor.domain.errors import Code, Failed
from torpor.domain.image_reference import parse_image
from torpor.runtimes.docker.registry_credentials import registry_auth

AUTH = base64.b64encode(b"ann:pass:word").decode()
SIGNED_IN = {"username": "ann", "password": "pass:word"}


def sent(path: Path | None, image: str) -> object:
    header = registry_auth(path, parse_image(image))
    return None if header is None else json.loads(base64.urlsafe_b64decode(header))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.json"


def test_the_entry_of_the_images_registry_is_sent(file: Path) -> None:
    auths = {
        "r.example:5000": {"auth": AUTH},
        "https://index.docker.io/v1/": {"username": "ann", "password": "pass:word"},
        "token.example": {"auth": AUTH, "identitytoken": "t"},
    }
    file.write_text(json.dumps({"auths": auths, "credsStore": "desktop"}))
    assert sent(file, "r.example:5000/a") == {**SIGNED_IN, "serveraddress": "r.example:5000"}
    assert sent(file, "python") == {**SIGNED_IN, "serveraddress": "docker.io"}
    assert sent(file, "token.example/a") == {"identitytoken": "t", "serveraddress": "token.example"}
    for other in ("r.example/a", "r.example:5001/a", "docker.io.example/a", "localhost/a"):
        assert sent(file, other) is None
    assert sent(None, "python") is None


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (None, "cannot be read: No such file"),
        ("very secret", "is not JSON"),
        ("[]", "format of Docker's config.json"),
        ('{"auths": "very secret"}', "format of Docker's config.json"),
        ('{"credsStore": "desktop"}', "credential helper"),
        ('{"auths": {"docker.io": {"auth": "very secret"}}}', "Base64 of USER:PASSWORD"),
        ('{"auths": {"docker.io": {"auth": "dmVyeXNlY3JldA=="}}}', "Base64 of USER:PASSWORD"),
        ('{"auths": {"docker.io": {"username": "very secret"}}}', "without `auth`"),
        ('{"auths": {"docker.io": "very secret"}}', "without `auth`"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_without_its_content(file: Path, text: str | None, fault: str) -> None:
    if text is not None:
        file.write_text(text)
    with pytest.raises(Failed, match="setting registry_credentials") as failed:
        registry_auth(file, parse_image("python"))
    assert failed.value.code is Code.IMAGE_PULL_FAILED
    assert str(file) in failed.value.message
    assert fault in failed.value.message
    assert "secret" not in failed.value.message
