"""Map several files into memory as one array of records.

Each file is mapped into one reserved range of addresses, at a place where a record may begin. So a record of any file has one
row number, and a gather from all files is a gather from one array. The rows between the files are not used.
"""

import ctypes
import math
import mmap
import os
from collections.abc import Sequence

import numpy as np

from torpor.sort.data.files import to_sort_failed
from torpor.sort.data.segments import Segment
from torpor.sort.errors import SortFailed
from torpor.sort.kernels.batch import FixedBatch
from torpor.sort.record import Fixed

PAGE = mmap.ALLOCATIONGRANULARITY
MAP_FIXED = 0x10
MAP_NORESERVE = 0x4000

# Python's mmap does not take an address.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


class MappedInput:
    """If a file is truncated while it is mapped, a signal ends the process. The next process reports what happened."""

    def __init__(self, segments: Sequence[Segment], format: Fixed) -> None:  # noqa: A002 - the product's word for it
        # Both a page and a record begin at each multiple of this.
        step = math.lcm(PAGE, format.length)
        begins: list[int] = []
        size = step
        for segment in segments:
            begins.append(size)
            size += -(-(segment.end - segment.start // step * step) // step) * step
        try:
            self._range = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE, prot=mmap.PROT_READ)
        except OSError as error:
            raise SortFailed(f"{size} bytes of addresses cannot be reserved for the inputs: {error.strerror}") from error
        data = np.frombuffer(self._range, dtype=np.uint8)
        self._address = data.ctypes.data
        self.batch = FixedBatch(data, format)
        self.offsets = [begin + segment.start % step for begin, segment in zip(begins, segments, strict=True)]
        """Where each segment begins in the array."""
        for segment, offset in zip(segments, self.offsets, strict=True):
            self._lay(segment, offset)

    def _lay(self, segment: Segment, offset: int) -> None:
        if segment.start == segment.end:
            return
        before = segment.start % PAGE
        size, flags = segment.end - segment.start + before, mmap.MAP_SHARED | MAP_FIXED
        try:
            descriptor = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                where = self._address + offset - before
                found = _libc.mmap(where, size, mmap.PROT_READ, flags, descriptor, segment.start - before)
                if found != where:
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise to_sort_failed(error, segment.path, "mapping the input file") from error
