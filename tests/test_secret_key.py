"""A sealed value can be opened only with its key, for its workspace and its name; a bad key file is named."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from torpor.domain.errors import Refused
from torpor.secret_key import SecretKey

VALUE = "s3cret é\nline"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "secrets.key"


def test_the_first_secret_creates_a_key_for_its_owner_only(path: Path) -> None:
    key = SecretKey(path)
    assert key.read() is None
    sealed = key.seal("w", "TOKEN", VALUE)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in path.parent.iterdir()] == ["secrets.key"], "nothing is left beside it"
    assert SecretKey(path).open(sealed) == VALUE
    assert VALUE.encode() not in sealed.sealed
    assert "sealed" not in repr(sealed)
    assert key.seal("w", "TOKEN", VALUE).sealed != sealed.sealed, "equal values do not look equal"


def test_a_value_is_bound_to_its_workspace_and_its_name(path: Path) -> None:
    key = SecretKey(path)
    sealed = key.seal("w", "TOKEN", VALUE)
    damaged = sealed.sealed[:-1] + bytes([sealed.sealed[-1] ^ 1])
    for other in (
        replace(sealed, workspace_id="v"),
        replace(sealed, name="OTHER"),
        replace(sealed, sealed=damaged),
        replace(sealed, sealed=b""),
    ):
        with pytest.raises(Refused, match="damaged") as refused:
            key.open(other)
        assert refused.value.code == "secret_unreadable"


def test_a_missing_and_another_key_are_named_and_what_to_do(path: Path) -> None:
    sealed = SecretKey(path).seal("w", "TOKEN", VALUE)
    kept = path.read_bytes()
    path.unlink()
    with pytest.raises(Refused, match=rf"TOKEN cannot be decrypted: the key file {path} is missing.*home is not affected"):
        SecretKey(path).open(sealed)
    assert not path.exists(), "only a new secret creates a key"
    SecretKey(path).seal("w", "OTHER", VALUE)
    with pytest.raises(Refused, match=f"encrypted with the key {sealed.key_id}.*torpor secrets set"):
        SecretKey(path).open(sealed)
    path.write_bytes(kept)
    assert SecretKey(path).open(sealed) == VALUE


@pytest.mark.parametrize("content", [b"", b"short", b"QUJD\n", b"\xff" * 44])
def test_a_file_that_is_no_key_is_refused_and_stays(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(Refused, match="does not contain 32 bytes") as refused:
        SecretKey(path).seal("w", "TOKEN", VALUE)
    assert refused.value.code == "bad_secret_key"
    assert path.read_bytes() == content


def test_a_key_that_other_users_can_read_is_refused(path: Path) -> None:
    SecretKey(path).seal("w", "TOKEN", VALUE)
    path.chmod(0o604)
    with pytest.raises(Refused, match=f"chmod 600 {path}"):
        SecretKey(path).read()
    path.chmod(0o440)
    assert SecretKey(path).read() is not None, "a group may read it, as with a mounted secret"


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot be created: No such file"):
        SecretKey(tmp_path / "none" / "key").seal("w", "TOKEN", VALUE)


def test_processes_that_create_it_at_once_agree(path: Path) -> None:
    ids: list[str] = []
    begin = threading.Barrier(8)

    def seal() -> None:
        begin.wait(10)
        ids.append(SecretKey(path).seal("w", "TOKEN", VALUE).key_id)

    threads = [threading.Thread(target=seal) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(10)
    assert len(ids) == 8
    assert len(set(ids)) == 1


def test_a_derived_key_depends_on_the_file_and_the_purpose(path: Path, tmp_path: Path) -> None:
    key = SecretKey(path)
    derived = key.derive("agents")
    assert SecretKey(path).derive("agents") == derived
    assert key.derive("another purpose") != derived
    assert SecretKey(tmp_path / "another").derive("agents") != derived
    assert key.read() not in (None, derived)
