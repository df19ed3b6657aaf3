"""Every record of every input is read once and in order, at any cut of the inputs."""

import os
import subprocess
import sys
import tempfile
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sort.kernels.oracle import key_of, records_of
from torpor.sort.data.inputs import (
    HELD_OPEN,
    MAX_LINE,
    MAX_SAMPLED_KEY,
    MEASURED,
    InputReader,
    check_unchanged,
    chunks,
    cut,
    find,
    sample,
)
from torpor.sort.data.segments import Chunk, Inputs
from torpor.sort.documents import decode, encode
from torpor.sort.errors import SortFailed, SortRefused
from torpor.sort.record import GENSORT, Fixed, Format, Lines

THREE = Fixed(3, 1, 2)


def write(path: Path, content: bytes = b"") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def names(inputs: Inputs, top: Path) -> list[str]:
    return [str(Path(segment.path).relative_to(top)) for segment in inputs.segments]


def content(inputs: Inputs, format_: Format, chunk_bytes: int) -> bytes:
    """All bytes, read chunk by chunk."""
    buffer = memoryview(bytearray(chunk_bytes + 1000))
    with InputReader(inputs, format_) as reader:
        return b"".join(bytes(buffer[: reader.read(chunk, buffer)]) for chunk in chunks(inputs, format_, chunk_bytes))


def refusal(paths: list[Path], format_: Format = Lines()) -> SortRefused:
    with pytest.raises(SortRefused) as caught:
        find(paths, format_)
    return caught.value


# ---- which files


def test_files_are_ordered_by_the_bytes_of_their_relative_paths(tmp_path: Path) -> None:
    for name in ("b", "a/z", "a.txt", "a/b/c", "B", "ä", "a-"):
        write(tmp_path / name)
    (tmp_path / "empty").mkdir()
    assert names(find([tmp_path], GENSORT), tmp_path) == ["B", "a-", "a.txt", "a/b/c", "a/z", "b", "ä"]


def test_file_names_that_are_not_utf_8_are_read_and_journaled(tmp_path: Path) -> None:
    write(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")), b"line\n")
    inputs = find([tmp_path], Lines())
    again = decode(Inputs, encode(inputs))
    assert again == inputs
    assert content(again, Lines(), 10) == b"line\n"


def test_directories_keep_the_given_order(tmp_path: Path) -> None:
    for name in ("one/b", "one/a", "two/a", "three"):
        write(tmp_path / name)
    found = find([tmp_path / "two", tmp_path / "three", tmp_path / "one"], GENSORT)
    assert names(found, tmp_path) == ["two/a", "three", "one/a", "one/b"]


def test_hidden_files_are_skipped_unless_they_are_named(tmp_path: Path) -> None:
    for name in (".a", ".d/b", "c/.d", "c/e"):
        write(tmp_path / name)
    assert names(find([tmp_path], GENSORT), tmp_path) == ["c/e"]
    assert names(find([tmp_path / ".d", tmp_path / ".a"], GENSORT), tmp_path) == [".d/b", ".a"]


def test_links_to_files_are_followed(tmp_path: Path) -> None:
    target = write(tmp_path / "elsewhere/file", b"one\n")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/link").symlink_to(target)
    (tmp_path / "also").symlink_to(tmp_path / "in")
    assert content(find([tmp_path / "also"], Lines()), Lines(), 10) == b"one\n"


def test_a_directory_without_files_has_no_records(tmp_path: Path) -> None:
    inputs = find([tmp_path], GENSORT)
    assert inputs == Inputs()
    assert inputs.size == 0
    assert inputs.bases == ()
    assert chunks(inputs, GENSORT, 100) == []
    assert sample(inputs, GENSORT, 10, seed=1) == []
    assert cut(inputs, GENSORT, 3) == (Inputs(), Inputs(), Inputs())


def test_an_input_that_is_not_a_file_is_refused_with_its_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loops").mkdir()
    (tmp_path / "loops/back").symlink_to(tmp_path)
    (tmp_path / "links").mkdir()
    (tmp_path / "links/dangling").symlink_to(tmp_path / "nowhere")
    for path, code, named in (
        (tmp_path / "missing", "missing_input", "missing"),
        (tmp_path / "pipe/below", "missing_input", "pipe/below"),
        (tmp_path / "pipe", "special_input", "pipe"),
        (Path("/dev/null"), "special_input", "/dev/null"),
        (tmp_path / "loops", "special_input", "loops/back"),
        (tmp_path / "links", "missing_input", "links/dangling"),
    ):
        refused = refusal([path])
        assert (refused.code, named in refused.message) == (code, True), path


UNREADABLE = """
import os, sys
from pathlib import Path
from torpor.sort.errors import SortRefused
from torpor.sort.data.inputs import find
from torpor.sort.record import Lines
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
for path in sys.argv[1:]:
    try:
        find([Path(path)], Lines())
    except SortRefused as refused:
        print(refused.code, refused.message)
    else:
        print("found", path)
"""


def test_an_unreadable_input_is_refused_with_its_name() -> None:
    # Not in pytest's directory, which other users cannot enter; and root may read everything, so another user reads.
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        top.chmod(0o755)
        write(top / "file", b"x\n").chmod(0)
        write(top / "open/closed/file", b"x\n")
        write(top / "fine", b"x\n")
        (top / "open/closed").chmod(0)
        paths = [str(top / "file"), str(top / "open"), str(top / "fine")]
        found = subprocess.run([sys.executable, "-c", UNREADABLE, *paths], capture_output=True, text=True, check=True)
        (top / "open/closed").chmod(0o755)
    first, second, third = found.stdout.splitlines()
    assert first == f"unreadable_input the input file {top}/file cannot be read: Permission denied"
    assert second == f"unreadable_input the input directory {top}/open/closed cannot be read: Permission denied"
    assert third == f"found {top}/fine"


@pytest.mark.parametrize("size", [1, 99, 101, 12345])
def test_a_truncated_file_is_refused_with_its_sizes(tmp_path: Path, size: int) -> None:
    write(tmp_path / "good", bytes(200))
    write(tmp_path / "short", bytes(size))
    refused = refusal([tmp_path], GENSORT)
    assert refused.code == "truncated"
    assert refused.message == (
        f"the input file {tmp_path}/short has {size} bytes, not a whole number of records of 100 bytes each"
    )


def test_positions_count_the_newline_that_is_added(tmp_path: Path) -> None:
    write(tmp_path / "a", b"one\ntwo")
    write(tmp_path / "b")
    write(tmp_path / "c", b"three\n")
    inputs = find([tmp_path], Lines())
    assert inputs.bases == (0, 8, 8)
    assert inputs.size == 14
    assert content(inputs, Lines(), 100) == b"one\ntwo\nthree\n"


# ---- changed files


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more\n")


def touch(path: Path) -> None:
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


@pytest.mark.parametrize(
    ("change", "told"), [(grow, "from 8 to 13 bytes"), (touch, "it was written again"), (Path.unlink, "No such file")]
)
def test_a_changed_file_is_detected(tmp_path: Path, change: object, told: str) -> None:
    write(tmp_path / "a", b"x\n")
    path = write(tmp_path / "b", b"one\ntwo\n")
    inputs = find([tmp_path], Lines())
    found = chunks(inputs, Lines(), 100)
    check_unchanged(inputs)
    assert callable(change)
    change(path)
    with pytest.raises(SortFailed) as caught:
        check_unchanged(inputs)
    assert str(path) in caught.value.message
    assert told in caught.value.message
    with InputReader(inputs, Lines()) as reader, pytest.raises(SortFailed) as caught:
        reader.read(found[1], memoryview(bytearray(100)))
    assert str(path) in caught.value.message


def test_an_empty_file_that_grows_is_noticed_by_exactly_one_worker(tmp_path: Path) -> None:
    for name, text in (("a", b""), ("b", b"1\n2\n3\n4\n"), ("c", b""), ("d", b"5\n"), ("e", b"")):
        write(tmp_path / name, text)
    inputs = find([tmp_path], Lines())
    for workers in (1, 2, 3, 7):
        watched = [Path(segment.path).name for each in cut(inputs, Lines(), workers) for segment in each.segments]
        assert [name for name in watched if name in "ace"] == ["a", "c", "e"], workers


def test_a_file_that_shrinks_while_it_is_open_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"x" * 1000)
    one = Fixed(1, 0, 1)
    inputs = find([path], one)
    first, second = chunks(inputs, one, 500)
    buffer = memoryview(bytearray(500))
    with InputReader(inputs, one) as reader:
        assert reader.read(first, buffer) == 500
        os.truncate(path, 600)
        with pytest.raises(SortFailed, match="ends at byte 600, but had 1000") as caught:
            reader.read(second, buffer)
    assert str(path) in caught.value.message


# ---- cutting

lines_of_files = st.lists(
    st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")), max_size=12)
    .map(b"\n".join)
    .flatmap(lambda text: st.sampled_from([text, text + b"\n"])),
    min_size=1,
    max_size=4,
)
records_of_files = st.lists(st.integers(0, 40).map(lambda count: os.urandom(3 * count)), min_size=1, max_size=4)


def whole(texts: list[bytes], format_: Format) -> bytes:
    if isinstance(format_, Fixed):
        return b"".join(texts)
    return b"".join(text if not text or text.endswith(b"\n") else text + b"\n" for text in texts)


def check_chunks(inputs: Inputs, format_: Format, chunk_bytes: int, expected: bytes) -> None:
    """Chunks are whole records, have not too many bytes, and are together the whole input."""
    buffer = memoryview(bytearray(chunk_bytes + 100))
    position = 0
    with InputReader(inputs, format_) as reader:
        for number, chunk in enumerate(chunks(inputs, format_, chunk_bytes)):
            assert (chunk.number, chunk.base) == (number, position)
            data = bytes(buffer[: reader.read(chunk, buffer)])
            assert len(data) == chunk.size
            assert b"".join(records_of(format_, data)) == data
            assert chunk.size <= chunk_bytes or len(records_of(format_, data)) == 1
            assert data == expected[position : position + len(data)]
            position += len(data)
    assert position == len(expected) == inputs.size


@given(
    files=lines_of_files.map(lambda texts: (Lines(), texts)) | records_of_files.map(lambda texts: (THREE, texts)),
    workers=st.integers(1, 6),
    chunk_bytes=st.integers(1, 40),
)
def test_ranges_and_chunks_cover_every_record_once(files: tuple[Format, list[bytes]], workers: int, chunk_bytes: int) -> None:
    format_, texts = files
    expected = whole(texts, format_)
    records = records_of(format_, expected)
    longest = max(map(len, records), default=0)
    with tempfile.TemporaryDirectory() as name:
        for number, text in enumerate(texts):
            write(Path(name) / str(number), text)
        inputs = find([Path(name)], format_)
        check_chunks(inputs, format_, chunk_bytes, expected)
        ranges = cut(inputs, format_, workers)
        assert len(ranges) == workers
        begin = 0
        for each in ranges:
            share = expected[begin : begin + each.size]
            check_chunks(each, format_, chunk_bytes, share)
            assert records_of(format_, share) == [record for record in records_of(format_, share) if record in records]
            assert abs(each.size - len(expected) / workers) <= 2 * longest
            begin += each.size
        assert begin == len(expected)


def test_a_range_is_cut_again_between_records(tmp_path: Path) -> None:
    write(tmp_path / "a", b"".join(b"%03d" % number for number in range(100)))
    first, second = cut(find([tmp_path], THREE), THREE, 2)
    quarters = [*cut(first, THREE, 2), *cut(second, THREE, 2)]
    assert [each.size for each in quarters] == [75, 75, 75, 75]
    assert b"".join(content(each, THREE, 30) for each in quarters) == (tmp_path / "a").read_bytes()


def test_a_cut_right_after_a_newline_is_kept(tmp_path: Path) -> None:
    write(tmp_path / "a", b"123456789\n" * 12)
    assert [each.size for each in cut(find([tmp_path], Lines()), Lines(), 4)] == [30, 30, 30, 30]


def test_lines_longer_than_a_chunk_and_its_windows(tmp_path: Path) -> None:
    text = b"a" * 200_000 + b"\n" + b"b" * 10 + b"\n" + b"c" * 70_000 + b"\n" + b"d" * 5_000
    write(tmp_path / "a", text)
    inputs = find([tmp_path], Lines())
    assert [chunk.size for chunk in chunks(inputs, Lines(), 1000)] == [200_001, 11, 70_001, 5_001]
    assert [chunk.size for chunk in chunks(inputs, Lines(), 75_000)] == [200_001, 70_012, 5_001]
    assert [each.size for each in cut(inputs, Lines(), 3)] == [200_001, 0, 75_013]


def test_a_line_of_the_maximum_length_is_read(tmp_path: Path) -> None:
    write(tmp_path / "a", b"first\n" + b"x" * (MAX_LINE - 1) + b"\n" + b"y" * (MAX_LINE - 1))
    found = chunks(find([tmp_path], Lines()), Lines(), 1 << 20)
    assert [chunk.size for chunk in found] == [6, MAX_LINE, MAX_LINE]


def test_a_line_that_is_too_long_is_reported_with_its_position(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"first\n" + b"x" * (MAX_LINE + 500) + b"\nlast\n")
    inputs = find([path], Lines())
    told = f"{path} has a line of {MAX_LINE + 501} bytes at byte 6; a line may have at most {MAX_LINE}, newline included"
    with pytest.raises(SortFailed, match=told):
        chunks(inputs, Lines(), 1 << 20)
    with pytest.raises(SortFailed, match=told):
        sample(inputs, Lines(), 100_000, seed=1)


def test_a_line_far_beyond_the_limit_is_not_measured_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with path.open("wb") as file:
        file.truncate(MAX_LINE + MEASURED + 10)
    with pytest.raises(SortFailed, match=f"{path} has a line of more than {MAX_LINE + MEASURED} bytes at byte 0; a line"):
        chunks(find([path], Lines()), Lines(), 1 << 20)


# ---- reading


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_many_files_are_read_by_threads_with_few_of_them_open(tmp_path: Path) -> None:
    for number in range(200):
        write(tmp_path / f"{number:03d}", b"%03d" % number * 50)
    inputs = find([tmp_path], THREE)
    found = chunks(inputs, THREE, 30)
    before = open_files()
    most = 0

    def read(chunk: Chunk) -> None:
        nonlocal most
        buffer = memoryview(bytearray(30))
        assert reader.read(chunk, buffer) == 30
        assert bytes(buffer) == b"%03d" % chunk.segment * 10
        most = max(most, open_files())

    with InputReader(inputs, THREE) as reader, ThreadPoolExecutor(4) as threads:
        list(threads.map(read, found))
        list(threads.map(read, reversed(found)))
    # Listing the files opens one or two itself, in each thread.
    assert HELD_OPEN <= most - before <= HELD_OPEN + 12
    assert open_files() == before


# ---- samples of the keys


def records_with_positions(data: bytes, format_: Format) -> dict[int, bytes]:
    found, position = {}, 0
    for record in records_of(format_, data):
        found[position] = record
        position += len(record)
    return found


@given(
    files=st.tuples(st.sampled_from([Lines(), Lines(1, b"a"), Lines(2, b"\x00"), Lines(3, b"a")]), lines_of_files)
    | st.tuples(st.sampled_from([THREE, Fixed(3, 0, 3)]), records_of_files),
    count=st.integers(0, 50),
    seed=st.integers(0, 2**64 - 1),
)
def test_samples_are_keys_at_their_positions(files: tuple[Format, list[bytes]], count: int, seed: int) -> None:
    format_, texts = files
    expected = records_with_positions(whole(texts, format_), format_)
    with tempfile.TemporaryDirectory() as name:
        for number, text in enumerate(texts):
            write(Path(name) / str(number), text)
        inputs = find([Path(name)], format_)
        found = sample(inputs, format_, count, seed)
        assert found == sample(inputs, format_, count, seed)
    assert all(key == key_of(format_)(expected[position]) for key, position in found)
    most = len(expected) if isinstance(format_, Fixed) else inputs.size
    assert len(found) == min(count, most)


@pytest.mark.parametrize("format_", [GENSORT, Lines()])
def test_samples_are_spread_over_all_bytes(tmp_path: Path, format_: Format) -> None:
    for number in range(4):
        write(tmp_path / str(number), (b"%d" % number * 99 + b"\n") * 1000)
    found = sample(find([tmp_path], format_), format_, 400, seed=7)
    share = [bisect_right([100_000, 200_000, 300_000], position) for _, position in found]
    assert all(80 <= share.count(number) <= 120 for number in range(4))
    assert len({position for _, position in found}) > 350


def read_bytes() -> int:
    """The bytes that this process has read since it began."""
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


@pytest.mark.parametrize("format_", [Lines(), Lines(2, b",")], ids=str)
def test_a_sample_of_long_lines_reads_each_byte_about_once(tmp_path: Path, format_: Format) -> None:
    lines = [b"%d,%d%b\n" % (number, number, b"x" * (2 << 20)) for number in range(4)]
    write(tmp_path / "a", b"".join(lines))
    inputs = find([tmp_path], format_)
    before = read_bytes()
    assert len(set(sample(inputs, format_, 4_000, seed=1))) == len(lines)
    assert read_bytes() - before < 1.2 * inputs.size


def test_long_sampled_keys_are_truncated(tmp_path: Path) -> None:
    write(tmp_path / "a", (b"k" * 5000 + b"," + b"f" * 3000 + b"\n") * 20)
    inputs = find([tmp_path], Lines())
    assert {key for key, _ in sample(inputs, Lines(), 10, seed=1)} == {b"k" * MAX_SAMPLED_KEY}
    assert {key for key, _ in sample(inputs, Lines(2, b","), 10, seed=1)} == {b"f" * MAX_SAMPLED_KEY}
    assert {key for key, _ in sample(inputs, Lines(3, b","), 10, seed=1)} == {b""}
