"""A home that is larger than its size is named."""

from datetime import UTC, datetime

import pytest

from tests.support.builders import workspace
from torpor.domain.explain import explain
from torpor.domain.home_size import size_excess
from torpor.domain.records import HomeSize
from torpor.domain.sizes import WorkspaceSize

AT = datetime(2026, 11, 17, tzinfo=UTC)


@pytest.mark.parametrize(
    ("allowed_mb", "used_mb", "is_excess"),
    [(None, 10, False), (10, 9, False), (10, 10, False), (10, 11, True), (10, None, False)],
)
def test_only_a_measured_home_above_its_own_size_is_named(allowed_mb: int | None, used_mb: int | None, is_excess: bool) -> None:
    used = HomeSize(3, used_mb << 20, AT) if used_mb is not None else None
    row = workspace(generation=3, volume_present=True, home_size=used, size=WorkspaceSize(disk_mb=allowed_mb))
    assert (size_excess(row) is not None) is is_excess
    assert any("more than its size of 10.0 MiB" in line for line in explain(row, ()).lines) is is_excess
