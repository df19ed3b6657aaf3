"""The validator finds every fault and reports no others."""

import random
import zlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sort.kernels.inputs import any_data
from tests.sort.kernels.oracle import key_of, records_of
from torpor.sort.data.generate import generate
from torpor.sort.data.validate import PIECE, Validation, summary, validate
from torpor.sort.errors import SortRefused
from torpor.sort.record import GENSORT, Fixed, Format, Lines


def expected(form: Format, records: Sequence[bytes]) -> Validation:
    """The slow and obvious way."""
    keys = [key_of(form)(record) for record in records]
    unordered = [number for number, (before, key) in enumerate(pairwise(keys), start=1) if key < before]
    return Validation(
        records=len(records),
        size=sum(map(len, records)),
        duplicate_keys=sum(before == key for before, key in pairwise(keys)),
        unordered=len(unordered),
        first_unordered=unordered[0] if unordered else None,
        checksum=sum(map(zlib.crc32, records)),
        first_key=keys[0] if keys else None,
        last_key=keys[-1] if keys else None,
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(any_data(), st.booleans(), st.integers(0, 40))
def test_the_result_equals_that_of_a_simple_validator(
    tmp_path: Path, case: tuple[Format, bytes], in_order: bool, cut: int
) -> None:
    form, data = case
    records = records_of(form, data)
    if in_order:
        records.sort(key=key_of(form))
    (tmp_path / "a").write_bytes(b"".join(records[:cut]))
    (tmp_path / "b").write_bytes(b"".join(records[cut:]))
    found = validate([tmp_path / "a", tmp_path / "b"], form, threads=1)
    assert found == expected(form, records)
    assert found.in_order or not in_order


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("form", [GENSORT, Fixed(50, 45, 3), Lines()])
def test_over_many_blocks_in_order_and_not(tmp_path: Path, threads: int, form: Format) -> None:
    generate(70_000, tmp_path / "unsorted", ascii=True, skew=True)
    records = records_of(form, (tmp_path / "unsorted").read_bytes())
    assert len(b"".join(records)) > 2 * PIECE
    assert validate([tmp_path / "unsorted"], form, threads=threads) == expected(form, records)
    records.sort(key=key_of(form))
    (tmp_path / "sorted").write_bytes(b"".join(records))
    found = validate([tmp_path / "sorted"], form, threads=threads)
    assert found == expected(form, records)
    assert found.in_order
    assert found.duplicate_keys > 20_000 or form == Lines()


def test_one_swapped_record_is_found_anywhere(tmp_path: Path) -> None:
    """Also where one block ends and the next begins."""
    generate(70_000, tmp_path / "unsorted")
    records = sorted(records_of(GENSORT, (tmp_path / "unsorted").read_bytes()))
    path = tmp_path / "swapped"
    for number in (1, 2, PIECE // 100 - 1, PIECE // 100, PIECE // 100 + 1, 2 * (PIECE // 100), 69_999):
        swapped = records.copy()
        swapped[number - 1], swapped[number] = swapped[number], swapped[number - 1]
        path.write_bytes(b"".join(swapped))
        found = validate([path], threads=2)
        assert (found.unordered, found.first_unordered) == (1, number)
        assert found.checksum == sum(map(zlib.crc32, records))


def test_the_public_checksum(tmp_path: Path) -> None:
    generate(1_000_000, tmp_path / "records")
    found = validate([tmp_path / "records"])
    assert (found.records, found.size, found.checksum) == (1_000_000, 100_000_000, 0x7A27E2D0D55DE)


def test_a_changed_bit_changes_the_checksum(tmp_path: Path) -> None:
    generate(5000, tmp_path / "records")
    data = bytearray((tmp_path / "records").read_bytes())
    checksums = {validate([tmp_path / "records"]).checksum}
    dice = random.Random(1)
    for _ in range(20):
        place, bit = dice.randrange(len(data)), dice.randrange(8)
        data[place] ^= 1 << bit
        (tmp_path / "records").write_bytes(data)
        checksums.add(validate([tmp_path / "records"]).checksum)
    assert len(checksums) == 21


# ---- which files


def record(key: int) -> bytes:
    return b"%010d" % key + bytes(90)


def test_a_directory_of_outputs_is_its_outputs_by_number(tmp_path: Path) -> None:
    numbers = [99_998, 99_999, 100_000, 3]
    for number in numbers:
        (tmp_path / f"partition.{number:05}").write_bytes(record(number))
    for other in (".partition.00001.partial", "partition.00002.partial", "partition.x", "notes"):
        (tmp_path / other).write_bytes(b"not whole")
    found = validate([tmp_path])
    assert (found.records, found.in_order, found.first_key) == (4, True, b"%010d" % 3)


def test_directories_and_files_are_validated_in_the_given_order(tmp_path: Path) -> None:
    for name, key in [("one", 1), ("two", 2)]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "partition.00000").write_bytes(record(key))
    (tmp_path / "three").write_bytes(record(3))
    assert validate([tmp_path / "one", tmp_path / "two", tmp_path / "three"]).in_order
    assert validate([tmp_path / "two", tmp_path / "three", tmp_path / "one"]).first_unordered == 2


def test_any_other_directory_is_all_its_files_by_name(tmp_path: Path) -> None:
    for name, key in [("B", 1), ("a", 2), ("b", 3), (".hidden", 0)]:
        (tmp_path / name).write_bytes(record(key))
    found = validate([tmp_path])
    assert (found.records, found.in_order) == (3, True)


def test_a_truncated_file_is_refused_by_name_size_and_length(tmp_path: Path) -> None:
    (tmp_path / "partition.00000").write_bytes(record(1))
    (tmp_path / "partition.00001").write_bytes(record(2) + b"rest")
    with pytest.raises(SortRefused, match=r"partition\.00001 has 104 bytes, .* records of 100 bytes"):
        validate([tmp_path])


def test_a_missing_or_empty_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SortRefused, match="does not exist"):
        validate([tmp_path / "missing"])
    with pytest.raises(SortRefused, match="has no files to validate"):
        validate([tmp_path])


def test_empty_files_are_no_records(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"partition.{number:05}").write_bytes(b"")
    assert validate([tmp_path]) == Validation()
    (tmp_path / "partition.00001").write_bytes(record(1))
    assert validate([tmp_path]) == expected(GENSORT, [record(1)])


def test_a_last_line_without_newline_counts_as_a_line(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"a\nb")
    assert validate([tmp_path / "lines"], Lines()) == expected(Lines(), [b"a\n", b"b\n"])


@pytest.mark.parametrize("key", [b"", b"a", b"four\0", b"fives", b"a" * 10, b"a" * 12])
def test_a_key_is_less_than_the_same_with_zeros_behind(tmp_path: Path, key: bytes) -> None:
    for records in ([key + b"\0\n", key + b"\n"], [key + b"\n", key + b"\0\n"], [key + b"\n"] * 2):
        (tmp_path / "lines").write_bytes(b"".join(records))
        assert validate([tmp_path / "lines"], Lines()) == expected(Lines(), records)


def test_a_line_longer_than_a_piece(tmp_path: Path) -> None:
    records = [b"a" * (PIECE + 5) + b"\n", b"a" * (2 * PIECE) + b"\n", b"b\n"]
    (tmp_path / "lines").write_bytes(b"".join(records))
    assert validate([tmp_path / "lines"], Lines(), threads=2) == expected(Lines(), records)


def test_progress_adds_up_to_the_size(tmp_path: Path) -> None:
    records = 2 * PIECE // 100 + 1
    generate(records, tmp_path / "records")
    heard: list[int] = []
    validate([tmp_path / "records"], threads=3, progress=heard.append)
    assert sum(heard) == records * 100
    assert len(heard) == 3


# ---- the summary


def test_the_summary_has_the_words_of_valsort() -> None:
    assert summary(Validation(records=12, duplicate_keys=3, checksum=0xABC)) == (
        "Records: 12\nChecksum: abc\nDuplicate keys: 3\nSUCCESS - all records are in order"
    )
    assert summary(Validation(records=12, unordered=2, first_unordered=7, checksum=0xABC)) == (
        "First unordered record is record 7\nRecords: 12\nChecksum: abc\nERROR - there are 2 unordered records"
    )


def test_the_sum_stays_within_128_bits() -> None:
    one = Validation(records=1, checksum=2**128 - 1, first_key=b"a", last_key=b"a")
    assert (one + one).checksum == 2**128 - 2
