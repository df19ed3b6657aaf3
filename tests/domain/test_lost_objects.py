"""A report names the packs and roots that it found damaged or missing."""

from dataclasses import replace

import pytest

from tests.support.builders import workspace
from torpor.domain.errors import Code, Reason
from torpor.domain.lost_objects import lost_objects
from torpor.domain.pack_retention import PackId
from torpor.domain.records import Archive, ArchiveKey, EffectDone, EffectFailed, ProvenArchive, ProvenPack

ROW = workspace()
OTHER = "11111111-1111-4111-8111-111111111111"
OP_ID = "22222222-2222-4222-8222-222222222222"
NAME = f"{OP_ID}-{'0' * 64}"
LAST = f"{OP_ID}-{'1' * 64}"


def failed(code: Code = Code.CHECKSUM_MISMATCH, **context: object) -> EffectFailed:
    return EffectFailed(Reason.DATA_LOST, "it differs", {"code": code.value, **context})


@pytest.mark.parametrize(
    ("report", "lost"),
    [
        (failed(object=f"{ROW.id}/packs/{NAME}"), PackId(ROW.id, NAME)),
        (failed(object=NAME), PackId(ROW.id, NAME)),
        (failed(Code.ARCHIVE_NOT_FOUND, object=f"{ROW.id}/packs/{NAME}"), PackId(ROW.id, NAME)),
        (failed(Code.READBACK_MISMATCH, object=f"{ROW.id}/packs/{NAME}"), PackId(ROW.id, NAME)),
        (failed(object=f"{ROW.id}/archives/{OP_ID}.json.zst"), ArchiveKey(ROW.id, OP_ID)),
        (failed(archive_key=f"{ROW.id}/{OP_ID}"), ArchiveKey(ROW.id, OP_ID)),
        (failed(object=f"{ROW.id}/packs/{NAME}", archive_key=f"{ROW.id}/{OP_ID}"), PackId(ROW.id, NAME)),
        # An error of the store says nothing about the object.
        (failed(Code.S3_ACCESS_ERROR, object=f"{ROW.id}/packs/{NAME}"), None),
        (failed(object=f"{OTHER}/packs/{NAME}"), None),
        (failed(object=f"{ROW.id}/packs/something"), None),
        (failed(object=7), None),
        (failed(), None),
        (EffectDone(), None),
        (None, None),
    ],
)
def test_a_failure_names_a_pack_or_a_root(report: EffectFailed | EffectDone | None, lost: PackId | ArchiveKey | None) -> None:
    assert lost_objects(ROW, report) == (() if lost is None else (lost,))


def test_a_fork_may_find_the_archive_of_its_source_damaged() -> None:
    fork = replace(ROW, fork_source=Archive(ArchiveKey(OTHER, OP_ID), 1, 0, "root"))
    assert lost_objects(fork, failed(object=f"{OTHER}/packs/{NAME}")) == (PackId(OTHER, NAME),)


def test_an_archive_names_the_packs_that_it_did_not_take_over() -> None:
    archive = Archive(ArchiveKey(ROW.id, OP_ID), 1, 0, "root")
    proven = ProvenArchive(archive, 1, 1, 1, lost=(LAST, NAME, "something"))
    assert lost_objects(ROW, proven) == (PackId(ROW.id, NAME), PackId(ROW.id, LAST))
    needed = (ProvenPack(NAME, 1, "1", is_read_back=True),)
    assert lost_objects(ROW, replace(proven, packs=needed)) == (PackId(ROW.id, LAST),), "it was read back in the end"
