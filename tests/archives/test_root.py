"""A root is canonical, and every change of it is found."""

import hashlib
import json

import pytest

from tests.support.archive_jobs import HOME, KEY
from tests.support.stored_packs import bare_root
from torpor.archives.entries import ArchiveMismatch
from torpor.archives.frames import compressor, decompressed
from torpor.archives.packs.root import Root

PACKS = {f"{KEY.op_id}-{'b' * 64}": 7, f"{KEY.op_id}-{'a' * 64}": 5}
ROOT = bare_root(KEY, HOME, PACKS)


def squeezed(text: bytes) -> bytes:
    frame = compressor()
    return frame.compress(text) + frame.flush()


def test_a_root_is_canonical_json_in_one_frame() -> None:
    text = b"".join(decompressed([ROOT.serialise()]))
    said = json.loads(text)
    assert Root.parse(ROOT.serialise()) == ROOT
    assert text == json.dumps(said, sort_keys=True, separators=(",", ":")).encode()
    assert [pack["name"] for pack in said["packs"]] == sorted(PACKS)
    empty = json.dumps({**said, "checksum": ""}, sort_keys=True, separators=(",", ":")).encode()
    assert said["checksum"] == hashlib.sha256(empty).hexdigest()


@pytest.mark.parametrize(
    "change",
    [
        {"manifest_root": "other"},
        {"packs": []},
        {"generation": -1},
        {"format": 3},
        {"checksum": ""},
        {"packs": [{"name": "../x", "size": 1}]},
        {"packs": [{"name": next(iter(PACKS)), "size": 1}] * 2},
    ],
)
def test_a_changed_root_is_refused(change: dict[str, object]) -> None:
    said = json.loads(b"".join(decompressed([ROOT.serialise()])))
    changed = json.dumps({**said, **change}, sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(ArchiveMismatch):
        Root.parse(squeezed(changed))
    if "checksum" in change:
        return
    # Also if its checksum was computed again, unless it is valid in itself.
    empty = json.dumps({**said, **change, "checksum": ""}, sort_keys=True, separators=(",", ":")).encode()
    signed = {**said, **change, "checksum": hashlib.sha256(empty).hexdigest()}
    again = squeezed(json.dumps(signed, sort_keys=True, separators=(",", ":")).encode())
    if change.keys() <= {"manifest_root"}:
        assert Root.parse(again) != ROOT
    else:
        with pytest.raises(ArchiveMismatch):
            Root.parse(again)


def test_every_truncation_and_every_other_byte_is_refused() -> None:
    good = ROOT.serialise()
    for length in range(len(good)):
        with pytest.raises(ArchiveMismatch):
            Root.parse(good[:length])
    for position in range(len(good)):
        damaged = bytearray(good)
        damaged[position] ^= 0x40
        try:
            found = Root.parse(bytes(damaged))
        except ArchiveMismatch:
            continue
        assert found == ROOT, "a byte of the frame without a meaning"


@pytest.mark.parametrize("text", [b"", b"null", b"[]", b"{}", b"\xff", b"{" * 100_000])
def test_other_documents_are_refused(text: bytes) -> None:
    with pytest.raises(ArchiveMismatch):
        Root.parse(squeezed(text))
