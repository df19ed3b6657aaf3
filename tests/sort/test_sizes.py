"""Sizes are parsed, and chunks and partitions fit into the memory that they are made for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torpor.sort.errors import SortRefused
from torpor.sort.kernels.order import PACKED_BITS
from torpor.sort.sizes import GIB, KIB, MIB, SMALLEST_MEMORY, chunk_bytes, parse_size, partition_bytes, partitions, worker_count


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("17", 17), ("4K", 4 * KIB), ("4k", 4 * KIB), ("64M", 64 * MIB), ("2G", 2 * GIB), ("1T", 1 << 40), ("007", 7)],
)
def test_sizes_with_units_are_parsed(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "G", "1.5G", "-1", "+1", "1 G", "2GB", "1e3", "²", "٣", "1_000", "9" * 5000, "9" * 5000 + "K"]
)
def test_an_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(SortRefused, match="--memory") as caught:
        parse_size(text)
    assert caught.value.code == "bad_size"


def test_a_refusal_names_the_option() -> None:
    with pytest.raises(SortRefused, match="--block 'x' is not a size"):
        parse_size("x", "--block")


memories = st.integers(SMALLEST_MEMORY, 1 << 42)


@given(memories)
def test_chunks_and_partitions_fit_the_memory(memory: int) -> None:
    # Two threads hold a chunk raw, sorted and in keys of eight bytes for records of at least as many.
    assert 2 * 3 * chunk_bytes(memory) <= memory
    assert 2 * 2 * partition_bytes(memory) <= memory
    assert chunk_bytes(memory) <= partition_bytes(memory)


@given(memories)
def test_a_chunk_of_the_shortest_records_can_be_packed(memory: int) -> None:
    assert chunk_bytes(memory) < 1 << PACKED_BITS


@given(st.integers(0, 1 << 40), st.integers(1, 1000), st.integers(0, 1 << 30))
def test_the_number_of_workers_follows_from_limit_and_minimum_share(total: int, most: int, share: int) -> None:
    count = worker_count(total, most, share)
    assert 1 <= count <= most
    assert count == 1 or count * share <= total
    # Not fewer than needed: with one more, each would have less than its share.
    assert count == most or (count + 1) * share > total


@given(st.integers(0, 1 << 50), st.integers(1, 1000), memories)
def test_every_worker_has_the_same_number_of_partitions_that_fit_the_memory(total: int, workers: int, memory: int) -> None:
    count = partitions(total, workers, memory)
    assert count % workers == 0
    assert count >= workers
    assert total <= count * partition_bytes(memory)
    # Not more than needed: with one less for each they would be too large.
    assert count == workers or total > (count - workers) * partition_bytes(memory)
