"""Compare the records that were written with the records that were read, and check their order."""

from collections.abc import Mapping
from itertools import pairwise

from torpor.sort.machine.records import MergeReport, OutputFile, SortReport
from torpor.sort.proof import Proof, total


def find_fault(read: Mapping[int, SortReport], written: Mapping[int, MergeReport], partitions: int) -> str:
    """A text that says what is wrong, or an empty text. Checks the totals, and the order across files and workers by their
    first and last keys."""
    files = sorted((file for report in written.values() for file in report.files), key=lambda file: file.partition)
    if [file.partition for file in files] != list(range(partitions)):
        return f"{partitions} partitions were planned, but the files written are {[file.partition for file in files]}"
    was, came = total(report.proof for report in read.values()), total(file.proof for file in files)
    if was != came:
        return f"the output differs from the input: {_describe(was)} read, {_describe(came)} written"
    return _find_disorder(files)


def _find_disorder(files: list[OutputFile]) -> str:
    filled = [file for file in files if file.proof.records]
    for one, next_ in pairwise(filled):
        if one.last_key > next_.first_key:
            return f"partition {one.partition} ends with a greater key than partition {next_.partition} begins with"
    return ""


def _describe(proof: Proof) -> str:
    return f"{proof.records} records of {proof.size} bytes with checksum {proof.checksum:016x}"
