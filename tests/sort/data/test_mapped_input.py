"""Records of several files are at the places that their rows say."""

import os
from pathlib import Path

import numpy as np
import pytest

from torpor.sort.data.mapped_input import MappedInput
from torpor.sort.data.segments import Segment
from torpor.sort.errors import SortFailed
from torpor.sort.kernels.gather import gather
from torpor.sort.record import Fixed


@pytest.mark.parametrize("length", [1, 3, 64, 100, 4096, 5001])
def test_each_segment_is_at_its_position(tmp_path: Path, length: int) -> None:
    form = Fixed(length, 0, 1)
    contents = [os.urandom(length * count) for count in (7, 1, 500)]
    for number, data in enumerate(contents):
        (tmp_path / str(number)).write_bytes(data)
    whole = [Segment(str(tmp_path / str(number)), 0, len(data), len(data), 0) for number, data in enumerate(contents)]
    inner = Segment(whole[2].path, 431 * length, 499 * length, whole[2].size, 0)
    empty = Segment(whole[2].path, 2 * length, 2 * length, whole[2].size, 0)
    segments = [whole[0], empty, inner, whole[1], whole[2]]
    mapping = MappedInput(segments, form)
    rows: list[int] = []
    wanted = b""
    for segment, offset in zip(segments, mapping.offsets, strict=True):
        data = Path(segment.path).read_bytes()[segment.start : segment.end]
        assert mapping.batch.data[offset : offset + len(data)].tobytes() == data
        assert offset % length == 0
        rows += range(offset // length, (offset + len(data)) // length)
        wanted += data
    out = np.empty(len(wanted), dtype=np.uint8)
    gather(mapping.batch, np.array(rows, dtype=np.intp), out)
    assert out.tobytes() == wanted


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SortFailed, match="gone"):
        MappedInput([Segment(str(tmp_path / "gone"), 0, 100, 100, 0)], Fixed(100, 0, 10))
