"""The right answers, computed the slow and obvious way."""

from collections.abc import Callable, Sequence

import numpy as np

from torpor.sort.kernels.batch import Batch, Bytes, batch_of
from torpor.sort.record import Fixed, Format, Lines


def records_of(format: Format, data: bytes) -> list[bytes]:  # noqa: A002
    if isinstance(format, Fixed):
        return [data[begin : begin + format.length] for begin in range(0, len(data), format.length)]
    # Not splitlines: a carriage return is a byte like any other. A last line without a newline gets one.
    return [line + b"\n" for line in data.removesuffix(b"\n").split(b"\n")] if data else []


def key_of(format: Format) -> Callable[[bytes], bytes]:  # noqa: A002
    match format:
        case Fixed(_, offset, length):
            return lambda record: record[offset : offset + length]
        case Lines(None, _):
            return lambda record: record[:-1]
        case Lines(int(field), delimiter):
            return lambda record: dict(enumerate(record[:-1].split(delimiter), start=1)).get(field, b"")
        case _:
            raise AssertionError(format)


def ordered(format: Format, data: bytes) -> list[int]:  # noqa: A002
    """The rows in stable order. Python's sort is stable, and its bytes compare like the sort's keys."""
    records = records_of(format, data)
    key = key_of(format)
    return sorted(range(len(records)), key=lambda row: key(records[row]))


def positions_of(records: Sequence[bytes]) -> list[int]:
    positions, position = [], 0
    for record in records:
        positions.append(position)
        position += len(record)
    return positions


def array(data: bytes) -> Bytes:
    """Read-only, like a mapped file."""
    return np.frombuffer(data, dtype=np.uint8)


def batch(format: Format, data: bytes) -> Batch:  # noqa: A002
    return batch_of(format, array(data))
