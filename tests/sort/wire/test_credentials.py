"""The credentials of a job are saved, loaded and kept private."""

import json
import os
from pathlib import Path

import pytest
from cryptography import x509

from torpor.sort.errors import SortFailed, SortRefused
from torpor.sort.wire.credentials import NAME, is_loopback, load_join, make_join, save_join, split_address


@pytest.mark.parametrize("tls", [False, True])
def test_a_join_file_is_saved_and_loaded(tmp_path: Path, tls: bool) -> None:
    join = make_join("job", "host:5000", tls)
    save_join(join, tmp_path / "join.json")
    assert load_join(tmp_path / "join.json") == join
    assert [path.name for path in tmp_path.iterdir()] == ["join.json"]


def test_only_the_owner_can_read_the_join_file(tmp_path: Path) -> None:
    path = tmp_path / "join.json"
    path.write_text("open to all")
    path.chmod(0o644)
    before = os.umask(0)
    try:
        save_join(make_join("job", "host:5000", True), path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_job_has_its_own_token_and_certificate() -> None:
    one, other = make_join("job", "host:1", True), make_join("job", "host:1", True)
    assert one.token != other.token
    assert one.certificate != other.certificate
    assert len(one.token) >= 40


def test_the_secrets_are_not_printed() -> None:
    join = make_join("job", "host:1", True)
    assert join.token not in repr(join)
    assert "PRIVATE KEY" not in repr(join)


def test_the_certificate_is_for_the_fixed_name_and_for_long() -> None:
    certificate = x509.load_pem_x509_certificate(make_join("job", "host:1", True).certificate.encode())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [NAME]
    assert (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days > 3_000


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SortRefused, match=r"absent\.json cannot be read") as refused:
        load_join(tmp_path / "absent.json")
    assert refused.value.code == "no_join"


@pytest.mark.parametrize(
    "change",
    [
        lambda plain: None,
        lambda plain: [],
        lambda plain: plain | {"tls": "yes"},
        lambda plain: plain | {"more": "x"},
        lambda plain: {name: value for name, value in plain.items() if name != "token"},
    ],
    ids=["null", "list", "type", "more", "fewer"],
)
def test_an_invalid_join_file_is_refused(tmp_path: Path, change: "object") -> None:
    path = tmp_path / "join.json"
    save_join(make_join("job", "host:5000", False), path)
    assert callable(change)
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(SortRefused, match="not a valid join file") as refused:
        load_join(path)
    assert refused.value.code == "bad_join"


def test_incomplete_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "join.json").write_text('{"job": "jo')
    with pytest.raises(SortRefused, match="not a valid join file"):
        load_join(tmp_path / "join.json")


def test_a_join_file_that_cannot_be_written_is_an_error_with_the_path(tmp_path: Path) -> None:
    with pytest.raises(SortFailed, match=r"absent/join\.json"):
        save_join(make_join("job", "host:5000", False), tmp_path / "absent" / "join.json")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("localhost", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("::", False),
        ("example.org", False),
        ("localhost.example.org", False),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("address", "expected"), [("host:80", ("host", 80)), ("[::1]:0", ("::1", 0)), ("127.0.0.1:65535", ("127.0.0.1", 65_535))]
)
def test_an_address_has_a_host_and_a_port(address: str, expected: tuple[str, int]) -> None:
    assert split_address(address) == expected


@pytest.mark.parametrize("address", ["host", ":80", "host:", "host:x", "host:-1", "host:65536", ""])
def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(SortRefused, match="HOST:PORT") as refused:
        split_address(address)
    assert refused.value.code == "bad_address"
