"""Which numbers do the rules need?"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torpor.domain.before_sleep import BEFORE_SLEEP_S
from torpor.domain.states import Operation

# Seconds without progress after which an operation is given up.
TIMEOUTS_S: Mapping[Operation, float] = {
    Operation.PROVISIONING: 300,
    Operation.RESTORING: 1800,
    Operation.ACCEPTING: 300,
    Operation.STARTING: 300,
    Operation.STOPPING: 300,
    Operation.ARCHIVING: 1800,
    Operation.CREATE_EMPTY_ARCHIVE: 300,
    Operation.DELETING: 300,
}


@dataclass(frozen=True, slots=True)
class Tuning:
    timeouts_s: Mapping[Operation, float] = field(default_factory=lambda: TIMEOUTS_S)
    max_retries: int = 3
    retry_base_s: float = 30
    """Before the first retry; it doubles with each."""
    retry_cap_s: float = 300
    restart_base_s: float = 2
    """Before a program that ended quickly is started again; it doubles with each quick end."""
    quick_end_s: float = 60
    """An end after at least this long of being ready starts the count of quick ends anew."""
    max_quick_ends: int = 3
    disk_reserve_bytes: int = 0
    """Below so much free space no workspace is started or restored; 0: that is not asked."""
    before_sleep_s: float = BEFORE_SLEEP_S
    """How long a `before_sleep` command may take. The deadline of STOPPING begins after it."""
