"""The last saved value is found again after a kill and on a full disk, and damage is noticed."""

import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.small_disk import fill, small_disk
from torpor.sort.errors import JournalCorrupt, SortFailed
from torpor.sort.journal import RESERVE, Journal


@dataclass(frozen=True, slots=True)
class Machine:
    state: str
    attempt: int
    keys: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class OtherMachine:
    name: str


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


def allocated(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_an_empty_journal_loads_none(journal: Journal) -> None:
    assert journal.load(Machine) is None
    journal.reserve()
    assert journal.load(Machine) is None


def test_the_last_saved_value_is_loaded_by_the_next_process(journal: Journal) -> None:
    for attempt in range(3):
        journal.save(Machine("Sorting", attempt, (b"\x00\n\xff",)))
    assert Journal(journal.path).load(Machine) == Machine("Sorting", 2, (b"\x00\n\xff",))
    assert [path.name for path in journal.path.parent.iterdir()] == ["journal"]


def test_removing_may_be_repeated(journal: Journal) -> None:
    journal.reserve()
    journal.save(Machine("Sorting", 1))
    journal.remove()
    journal.remove()
    assert list(journal.path.parent.iterdir()) == []


def test_every_damage_is_detected_and_the_file_is_named(journal: Journal) -> None:
    journal.save(Machine("Sorting", 1, (b"some key",)))
    good = journal.path.read_bytes()
    damaged = [b"", good[:1], good[:-3], good[: len(good) // 2], good + b"more", b"{}\n", b"\x00" * len(good)]
    damaged += [good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :] for at in range(len(good) - 1)]
    for content in damaged:
        journal.path.write_bytes(content)
        with pytest.raises(SortFailed) as caught:
            journal.load(Machine)
        assert f"the journal {journal.path} cannot be read" in caught.value.message


def test_a_damaged_journal_is_distinguished_from_another_version(journal: Journal) -> None:
    journal.save(Machine("Sorting", 1, (b"some key",)))
    good = journal.path.read_bytes()
    for torn in (b"", good[:10], good[:-3], b"\x00" * len(good)):
        journal.path.write_bytes(torn)
        with pytest.raises(JournalCorrupt):
            journal.load(Machine)
    journal.path.write_bytes(good.replace(b"journal 4 ", b"journal 5 ", 1))
    with pytest.raises(SortFailed) as caught:
        journal.load(Machine)
    assert not isinstance(caught.value, JournalCorrupt)


def test_a_journal_of_another_version_or_kind_is_named(journal: Journal) -> None:
    journal.save(Machine("Sorting", 1))
    with pytest.raises(SortFailed, match="OtherMachine"):
        journal.load(OtherMachine)
    journal.path.write_bytes(journal.path.read_bytes().replace(b"journal 4 ", b"journal 5 ", 1))
    with pytest.raises(SortFailed, match="version 5; this program reads version 4 and 2"):
        journal.load(Machine)


def test_a_journal_that_cannot_be_saved_is_an_error_with_the_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file/journal", tmp_path / "missing/journal"):
        with pytest.raises(SortFailed, match=f"saving the journal {path}: "):
            Journal(path).save(Machine("Sorting", 1))
        with pytest.raises(SortFailed, match=f"reserving space for the journal in {path}.reserve: "):
            Journal(path).reserve()


def test_a_value_that_cannot_be_encoded_keeps_the_last_one(journal: Journal) -> None:
    journal.save(Machine("Sorting", 1))
    with pytest.raises(ValueError, match=r"Expected `int`, got `str` - at `\$.attempt`"):
        journal.save(Machine("Sorting", "two"))  # type: ignore[arg-type]
    assert journal.load(Machine) == Machine("Sorting", 1)


def test_saves_from_several_threads_follow_one_another(journal: Journal) -> None:
    values = [Machine("Sorting", number, (os.urandom(1000),)) for number in range(40)]
    threads = [threading.Thread(target=journal.save, args=(value,)) for value in values]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert journal.load(Machine) in values


SAVING = """
import sys
from pathlib import Path
from tests.sort.test_journal import Machine
from torpor.sort.journal import Journal
journal = Journal(Path(sys.argv[1]))
for attempt in range(1_000_000):
    journal.save(Machine("Sorting", attempt, (attempt.to_bytes(8) * 5000,)))
    print(attempt, flush=True)
"""


def test_a_kill_while_saving_leaves_a_complete_journal(journal: Journal) -> None:
    for wanted in (1, 3, 6):
        process = subprocess.Popen(
            [sys.executable, "-c", SAVING, journal.path], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
        )
        assert process.stdout is not None
        said = -1
        while said < wanted:
            said = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        said = max([said, *map(int, process.communicate()[0].split())])
        found = journal.load(Machine)
        assert found is not None
        assert found == Machine("Sorting", found.attempt, (found.attempt.to_bytes(8) * 5000,))
        assert found.attempt >= said


# ---- a full disk


def test_the_reserve_is_held_and_grows_with_the_value(journal: Journal) -> None:
    journal.reserve()
    journal.reserve()
    assert allocated(journal.reserve_path) >= RESERVE
    journal.save(Machine("Sorting", 1, (bytes(1_500_000),)))
    assert allocated(journal.reserve_path) >= 2 * journal.path.stat().st_size


def test_a_full_disk_can_still_be_recorded(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        journal = Journal(disk / "journal")
        journal.reserve()
        journal.save(Machine("Sorting", 1, (b"k" * 100_000,)))
        fill(disk)
        journal.save(Machine("Failed", 1, (b"k" * 100_000,)))
        assert journal.load(Machine) == Machine("Failed", 1, (b"k" * 100_000,))
        assert not journal.reserve_path.exists()


def test_a_full_disk_without_a_reserve_is_an_error_and_keeps_the_last_value(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        journal = Journal(disk / "journal")
        journal.save(Machine("Sorting", 1, (b"k" * 100_000,)))
        fill(disk)
        with pytest.raises(SortFailed, match=f"saving the journal {journal.path}: no space is left on the device"):
            journal.save(Machine("Failed", 1, (b"k" * 100_000,)))
        assert journal.load(Machine) == Machine("Sorting", 1, (b"k" * 100_000,))
        assert sorted(path.name for path in disk.iterdir()) == ["filler", "journal"]
        with pytest.raises(SortFailed, match=r"reserving space for the journal .*no space is left on the device"):
            journal.reserve()


def test_a_value_larger_than_the_reserve_is_an_error_on_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        journal = Journal(disk / "journal")
        journal.reserve()
        journal.save(Machine("Sorting", 1))
        fill(disk)
        with pytest.raises(SortFailed, match="no space is left on the device"):
            journal.save(Machine("Failed", 1, (bytes(RESERVE),)))
        # The reserve is free now, so that something smaller can be recorded.
        journal.save(Machine("Failed", 1))
        assert journal.load(Machine) == Machine("Failed", 1)
