"""Sizes as Kubernetes writes them."""

import pytest

from torpor.runtimes.kubernetes.quantity import is_larger, size_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64Mi", 64 << 20),
        ("1Gi", 1 << 30),
        ("1G", 10**9),
        ("5", 5),
        ("2Ti", 2 << 40),
        ("0.5Gi", None),
        ("1e9", None),
        ("", None),
    ],
)
def test_a_size_is_read(text: str, size: int | None) -> None:
    assert size_bytes(text) == size


def test_only_a_larger_size_makes_a_volume_grow() -> None:
    assert is_larger("2Gi", "1Gi")
    assert is_larger("1Gi", "1G")
    assert not is_larger("1Gi", "1024Mi")
    assert not is_larger("1Gi", "2Gi")
    assert not is_larger("1Gi", "0.5Gi"), "it cannot be compared"
