"""The URLs of stores, and the translation of a store's errors."""

import errno
from pathlib import Path

import pytest
from obstore.exceptions import BaseError, GenericError, PermissionDeniedError

from tests.archives.s3 import S3
from torpor.archives.archives import HomeArchives
from torpor.archives.store import OS_ERROR_MEANS, ArchiveStore, ObjectMissing, StoreAddress, TransientFailure, _meaning
from torpor.domain.errors import Code, Failed, Refused


@pytest.mark.parametrize(
    ("url", "directory"),
    [
        ("file:///var/archives", "/var/archives"),
        ("file:///with%20space", "/with space"),
        ("file://localhost/x", "/x"),
        ("s3://bucket/prefix", None),
        ("gs://bucket", None),
        ("az://container/prefix", None),
    ],
)
def test_good_urls(url: str, directory: str | None) -> None:
    assert StoreAddress.parse(url).directory == (None if directory is None else Path(directory))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nonsense",
        "/var/archives",
        "file://relative/x",
        "file:",
        "ftp://x/y",
        "s3://",
        "s3:///x",
        "s3://b/p?x=1",
        "http://x",
        "s3://[x",
    ],
)
def test_bad_urls_say_what_is_allowed(url: str) -> None:
    with pytest.raises(Refused, match="expected file:///DIRECTORY") as caught:
        HomeArchives(url)
    assert caught.value.code == "bad_archive_url"


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(Refused) as caught:
        HomeArchives("s3://key:hunter2@bucket/x")
    assert "hunter2" not in caught.value.message


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(Refused, match="endpt"):
        ArchiveStore(StoreAddress.parse("s3://bucket"), {"endpt": "x"}).size("a")


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (GenericError("Unable to copy: No space left on device (os error 28)\n\nDebug"), (Code.DISK_FULL, False)),
        (GenericError("HTTP error: error sending request"), (Code.S3_ACCESS_ERROR, True)),
        (PermissionDeniedError("no"), (Code.S3_ACCESS_ERROR, False)),
        (OSError(errno.EDQUOT, "quota"), (Code.DISK_FULL, False)),
        (OSError(errno.EIO, "broken"), (Code.S3_ACCESS_ERROR, True)),
    ],
)
def test_errors_are_translated(error: BaseError | OSError, meaning: tuple[Code, bool]) -> None:
    assert _meaning(error) == meaning


def test_every_os_error_maps_to_a_known_code() -> None:
    assert {code for code, _ in OS_ERROR_MEANS.values()} <= {Code.DISK_FULL, Code.S3_ACCESS_ERROR}


class FlakyPlace(ArchiveStore):
    """Fails like a network a few times, then works."""

    failures = 0

    def _settle(self, path: str) -> None:
        if self.failures:
            self.failures -= 1
            raise GenericError("HTTP error: error sending request")
        super()._settle(path)


def flaky(tmp_path: Path, failures: int) -> FlakyPlace:
    place = FlakyPlace(StoreAddress.parse(f"file://{tmp_path}"), pauses_s=(0.0, 0.0))
    place.failures = failures
    return place


def test_three_tries(tmp_path: Path) -> None:
    place = flaky(tmp_path, 2)
    assert place.write_once("a/b", b"x") in (True, False)
    assert b"".join(place.windows("a/b", 1)) == b"x"
    with pytest.raises(TransientFailure):
        flaky(tmp_path, 3).write_once("a/c", b"x")


def test_a_missing_object_is_reported(tmp_path: Path) -> None:
    place = ArchiveStore(StoreAddress.parse(f"file://{tmp_path}"))
    assert place.size("a/b") is None
    with pytest.raises(ObjectMissing):
        list(place.windows("a/b", 10))


def test_an_unreachable_store_is_an_access_error() -> None:
    options = {
        "endpoint": "http://127.0.0.1:9",
        "access_key_id": "a",
        "secret_access_key": "hunter2",
        "region": "x",
        "allow_http": "true",
    }
    place = ArchiveStore(StoreAddress.parse("s3://bucket/prefix"), options, pauses_s=())
    with pytest.raises(Failed) as caught:
        place.size("a/b")
    assert caught.value.code is Code.S3_ACCESS_ERROR
    assert "hunter2" not in caught.value.message


@pytest.mark.parametrize("status", [401, 403, 400])
def test_a_refusal_of_the_store_says_where_and_with_which_status(status: int) -> None:
    class Refusing(S3):
        def answer(self, method: str, path: str, query: dict[str, list[str]]) -> tuple[int, bytes]:
            return status, b""

    with Refusing() as store, pytest.raises(Failed) as caught:
        list(ArchiveStore(StoreAddress.parse("s3://bucket/homes"), store.options, pauses_s=()).windows("a", 10))
    assert caught.value.code is Code.S3_ACCESS_ERROR
    assert (caught.value.context["endpoint"], caught.value.context["status_code"]) == ("s3://bucket/homes", status)
