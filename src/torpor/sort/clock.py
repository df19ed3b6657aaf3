"""Read a clock that does not go back while the process runs, for the times of a history."""

import time

# The wall clock can be set back at any time. The time since the boot cannot, and it includes suspended time.
_STARTED = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def now() -> float:
    """Seconds since 1970."""
    return _STARTED + time.clock_gettime(time.CLOCK_BOOTTIME)
