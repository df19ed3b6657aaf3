"""A size is the workspace's own, else its template's, else the default, and never more than the maximum."""

import pytest

from torpor.domain.errors import Refused
from torpor.domain.sizes import (
    NO_SIZE,
    WorkspaceSize,
    check_workspace_size,
    cpu_fault,
    disk_fault,
    effective_size,
    megabytes,
    memory_fault,
)

MOST = WorkspaceSize(cpu=4, memory_mb=8192, disk_mb=None)


@pytest.mark.parametrize(
    ("text", "amount"),
    [("512M", 512), ("4G", 4096), ("1.5g", 1536), ("2 GiB", 2048), ("1T", 1 << 20), ("64MB", 64)]
    + [(text, None) for text in ("", "4", "G", "-1G", "4K", "4GG", "1e3M", "4 G B")],
)
def test_an_amount_has_a_unit(text: str, amount: int | None) -> None:
    assert megabytes(text) == amount


@pytest.mark.parametrize("value", [0, -1, 0.001, 5000, float("nan"), float("inf"), True, "2", None])
def test_what_is_no_number_of_cores(value: object) -> None:
    assert cpu_fault(value) is not None


def test_good_values_have_no_fault() -> None:
    assert [cpu_fault(2), cpu_fault(0.5), memory_fault("16M"), disk_fault("1M")] == [None] * 4
    assert [memory_fault("15M"), memory_fault(4096), disk_fault("0M")].count(None) == 0


@pytest.mark.parametrize(
    ("size", "field"),
    [
        (WorkspaceSize(cpu=4.5), "cpu"),
        (WorkspaceSize(cpu=0), "cpu"),
        (WorkspaceSize(cpu=float("nan")), "cpu"),
        (WorkspaceSize(memory_mb=8193), "memory_mb"),
        (WorkspaceSize(memory_mb=15), "memory_mb"),
        (WorkspaceSize(disk_mb=0), "disk_mb"),
        (WorkspaceSize(disk_mb=(1 << 30) + 1), "disk_mb"),
    ],
)
def test_more_than_the_maximum_is_refused_with_the_setting(size: WorkspaceSize, field: str) -> None:
    with pytest.raises(Refused, match=rf"{field} is .*\(setting workspace_max_{field}\)") as refused:
        check_workspace_size(size, MOST)
    assert refused.value.code == "bad_size"


def test_the_maximum_itself_is_allowed() -> None:
    check_workspace_size(MOST, MOST)
    check_workspace_size(NO_SIZE, MOST)


@pytest.mark.parametrize(
    ("own", "of_template", "effective"),
    [
        (NO_SIZE, NO_SIZE, WorkspaceSize(4, 2048, None)),
        (NO_SIZE, WorkspaceSize(1, 4096, 10), WorkspaceSize(1, 4096, 10)),
        (WorkspaceSize(2, 512, 5), WorkspaceSize(1, 4096, 10), WorkspaceSize(2, 512, 5)),
        (NO_SIZE, WorkspaceSize(16, 1 << 20, None), WorkspaceSize(4, 8192, None)),
    ],
)
def test_which_size_counts(own: WorkspaceSize, of_template: WorkspaceSize, effective: WorkspaceSize) -> None:
    assert effective_size(own, of_template, MOST, memory_mb=2048) == effective


def test_without_a_maximum_all_cores_can_be_used() -> None:
    assert effective_size(NO_SIZE, NO_SIZE, NO_SIZE, memory_mb=2048) == WorkspaceSize(None, 2048, None)
