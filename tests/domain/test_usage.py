"""Points of the CPU and memory plots."""

from torpor.domain.usage import Usage, UsagePoint, UsageSample, usage_points


def sample(at_s: float, cpu_s: float, memory_bytes: int = 0) -> UsageSample:
    return UsageSample(at_s, Usage(cpu_s, memory_bytes))


def test_a_point_has_the_cores_since_the_sample_before() -> None:
    found = usage_points([sample(100, 5, 7), sample(110, 10, 8), sample(125, 10, 9)])
    assert found == (UsagePoint(110, 0.5, 8), UsagePoint(125, 0.0, 9))


def test_cpu_time_that_falls_counts_as_no_use() -> None:
    assert usage_points([sample(100, 50), sample(110, 2)]) == (UsagePoint(110, 0.0, 0),)


def test_a_single_sample_and_equal_times_give_no_point() -> None:
    assert usage_points([]) == usage_points([sample(1, 1)]) == usage_points([sample(1, 1), sample(1, 2)]) == ()
