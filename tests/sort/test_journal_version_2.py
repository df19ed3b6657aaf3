"""Journals that an earlier version of the program wrote stay readable, so that its jobs go on."""

from pathlib import Path

import pytest

from torpor.sort.data.segments import Inputs, Segment
from torpor.sort.errors import JournalCorrupt, SortFailed
from torpor.sort.job.local import LocalJobPlan
from torpor.sort.journal import Journal
from torpor.sort.kernels.partition_boundaries import Boundary
from torpor.sort.machine.history import Transition
from torpor.sort.machine.master import Master, RegisteredWorker
from torpor.sort.machine.records import (
    MergeReport,
    OutputFile,
    PartitionMap,
    Sample,
    ShuffleReport,
    SortReport,
    WorkerAssignment,
)
from torpor.sort.machine.states import MasterState, WorkerState
from torpor.sort.machine.worker import Worker
from torpor.sort.proof import Proof
from torpor.sort.worker.program import SavedWorker

P = Proof(3, 300, 2**64 - 1)
INPUTS = Inputs((Segment("/in/\udcff name", 0, 300, 300, 1_700_000_000_000_000_001, 1),))
CUT = PartitionMap((Boundary(b"\x00k", 1, 2),), (0, 1))
HISTORY = (Transition("", "Initializing", 1.5, "started"), Transition("Initializing", "Sampling", 2.25, "2 workers", 1))
PLAN = LocalJobPlan(Path("/out"), (INPUTS,), "gensort", 1 << 30)
MASTER = Master(
    "job",
    2,
    "gensort",
    state=MasterState.MERGING,
    members=(
        RegisteredWorker("a", "n1", None, 0, 0, "127.0.0.1:1", "127.0.0.1:2", 300, 1 << 30, "gensort"),
        RegisteredWorker("b", "n2", 1, 1, 2, "127.0.0.1:3", "127.0.0.1:4", 0, 1 << 30),
    ),
    cut=CUT,
    sorted={0: SortReport(P, (P, Proof()), 1.25), 1: SortReport(Proof(), (Proof(), Proof()))},
    shuffled={0: ShuffleReport(P, 0.5, 1, 100)},
    merged={1: MergeReport((OutputFile(1, P, b"\n", b"\xff" * 3),), 0.125)},
    reason="a \udcff reason",
    history=HISTORY,
)
WORKER = SavedWorker(
    Worker(
        "a",
        "job",
        WorkerState.FAILED,
        WorkerAssignment("job", None, 2, 1, "gensort", 1 << 30, True, False, 1),
        Sample(((b"\xfe\x00", 7), (b"", 8)), 9),
        CUT,
        failing=WorkerState.SAMPLING,
        reason="why",
        fatal=True,
        history=HISTORY,
    ),
    INPUTS,
)

PLAN_JOURNAL = (
    b"torpor-sort-journal 2 432a1551378fa912a20c0ff7dcbd99b93f542b7baae36cce77d4c392ae6bb816\n"
    b'{"output":"/out","slices":[{"segments":[{"path":"/in/\\udcff name","start":0,"end":300,"size":300,"mtime_ns":17'
    b'00000000000000001,"added":1}]}],"format":"gensort","memory":1073741824}\n'
)
MASTER_JOURNAL = (
    b"torpor-sort-journal 2 39c328e3de998f0b8c1243c6c1d00960d1986de2f705ed48cfda26a5fe0d22a0\n"
    b'{"job":"job","expected":2,"format":"gensort","proof":true,"sync":true,"state":"Merging","members":[{"identity"'
    b':"a","nonce":"n1","asked":null,"index":0,"attempt":0,"control":"127.0.0.1:1","data":"127.0.0.1:2","size":300,"'
    b'memory":1073741824,"format":"gensort"},{"identity":"b","nonce":"n2","asked":1,"index":1,"attempt":2,"control":'
    b'"127.0.0.1:3","data":"127.0.0.1:4","size":0,"memory":1073741824,"format":""}],"samples":{},"cut":{"boundaries"'
    b':[{"key":"006b","worker":1,"position":2}],"owners":[0,1]},"sorted":{"0":{"proof":{"records":3,"size":300,"chec'
    b'ksum":18446744073709551615},"declared":[{"records":3,"size":300,"checksum":18446744073709551615},{"records":0,'
    b'"size":0,"checksum":0}],"seconds":1.25},"1":{"proof":{"records":0,"size":0,"checksum":0},"declared":[{"records'
    b'":0,"size":0,"checksum":0},{"records":0,"size":0,"checksum":0}],"seconds":0.0}},"shuffled":{"0":{"received":{"'
    b'records":3,"size":300,"checksum":18446744073709551615},"seconds":0.5,"retries":1,"resent":100}},"merged":{"1":'
    b'{"files":[{"partition":1,"proof":{"records":3,"size":300,"checksum":18446744073709551615},"first_key":"0a","la'
    b'st_key":"ffffff"}],"seconds":0.125}},"reason":"a \\udcff reason","history":[{"source":"","target":"Initializing'
    b'","at":1.5,"reason":"started","attempt":0},{"source":"Initializing","target":"Sampling","at":2.25,"reason":"2 '
    b'workers","attempt":1}]}\n'
)
WORKER_JOURNAL = (
    b"torpor-sort-journal 2 5ee99e0033cc21ca8d76847356003508dde0313a0bc424fd17f5cc66c9803588\n"
    b'{"worker":{"identity":"a","job":"job","state":"Failed","terms":{"job":"job","index":null,"workers":2,"attempt"'
    b':1,"format":"gensort","memory":1073741824,"proof":true,"sync":false,"present":1},"sample":{"keys":[["fe00",7],'
    b'["",8]],"records":9},"cut":{"boundaries":[{"key":"006b","worker":1,"position":2}],"owners":[0,1]},"sorted":nul'
    b'l,"shuffled":null,"merged":null,"failing":"Sampling","reason":"why","fatal":true,"aborted":false,"job_done":fa'
    b'lse,"history":[{"source":"","target":"Initializing","at":1.5,"reason":"started","attempt":0},{"source":"Initia'
    b'lizing","target":"Sampling","at":2.25,"reason":"2 workers","attempt":1}]},"inputs":{"segments":[{"path":"/in/\\'
    b'udcff name","start":0,"end":300,"size":300,"mtime_ns":1700000000000000001,"added":1}]}}\n'
)
WRITTEN = [(LocalJobPlan, PLAN_JOURNAL, PLAN), (Master, MASTER_JOURNAL, MASTER), (SavedWorker, WORKER_JOURNAL, WORKER)]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


@pytest.mark.parametrize(("kind", "content", "value"), WRITTEN)
def test_a_journal_of_version_2_is_read(journal: Journal, kind: type, content: bytes, value: object) -> None:
    journal.path.write_bytes(content)
    assert journal.load(kind) == value


@pytest.mark.parametrize(("kind", "content", "value"), WRITTEN)
def test_the_same_value_is_saved_in_the_present_version(journal: Journal, kind: type, content: bytes, value: object) -> None:
    journal.path.write_bytes(content)
    journal.save(journal.load(kind))
    assert journal.path.read_bytes().startswith(b"torpor-sort-journal 4 ")
    assert journal.load(kind) == value


def test_a_damaged_journal_of_version_2_is_recognised(journal: Journal) -> None:
    for content in (MASTER_JOURNAL[:-3], MASTER_JOURNAL.replace(b"006b", b"006c")):
        journal.path.write_bytes(content)
        with pytest.raises(JournalCorrupt):
            journal.load(Master)


def test_a_journal_of_another_record_is_refused(journal: Journal) -> None:
    journal.path.write_bytes(WORKER_JOURNAL)
    with pytest.raises(SortFailed, match="this is not a Master: Object missing required field `job`"):
        journal.load(Master)
