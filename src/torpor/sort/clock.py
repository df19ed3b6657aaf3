"""What time is it, for a history whose times never go back while the process runs?"""

import time

# The wall clock may be set back at any time; the time since the machine was started cannot, and it counts suspended time too.
_STARTED = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def now() -> float:
    """Seconds since 1970."""
    return _STARTED + time.clock_gettime(time.CLOCK_BOOTTIME)
