"""Compute the wait before the next attempt."""


def backoff_s(failures: int, *, base_s: float, cap_s: float, dice: float) -> float:
    """Return a wait that doubles with every failure, up to the cap, minus a random part of up to half.

    `dice` (0 to 1) chooses how much is subtracted, so that attempts of many workspaces spread out.
    """
    if failures < 1:
        raise ValueError(f"failures must be at least 1, not {failures}")
    # The exponent is bounded, so that the power does not overflow.
    longest = min(cap_s, base_s * 2.0 ** min(failures - 1, 64))
    return longest * (1.0 - dice / 2.0)
