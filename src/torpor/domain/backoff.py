"""How long until the next try?"""


def backoff_s(failures: int, *, base_s: float, cap_s: float, dice: float) -> float:
    """Doubles with every failure up to the cap, less up to half of it by `dice` (0 to 1), so that a crowd disperses."""
    if failures < 1:
        raise ValueError(f"failures must be at least 1, not {failures}")
    # 2**64 seconds is longer than anybody waits; the exponent is bounded so that it stays a number.
    longest = min(cap_s, base_s * 2.0 ** min(failures - 1, 64))
    return longest * (1.0 - dice / 2.0)
