"""The settings' defaults, for tests and benchmarks that build a part of the product."""

from dataclasses import replace
from typing import Any

from torpor.domain.tuning import Tuning
from torpor.runtimes.process.options import ProcessOptions
from torpor.settings import load

DEFAULTS = load({"TORPOR_DATA": "/nonexistent"})


def tuning(**changes: Any) -> Tuning:
    """The numbers of the controller's rules with the settings' defaults, except for these changes.

    No disk space is reserved: fake machines report no disk, and the disks of real test machines are often nearly full.
    """
    return replace(DEFAULTS.tuning, **{"disk_reserve_bytes": 0, **changes})


def process_options(**changes: Any) -> ProcessOptions:
    """The process runtime's options with the settings' defaults, except for these changes. No disk space is reserved."""
    options = ProcessOptions(
        grace_s=DEFAULTS.workspace_stop_grace,
        blocked_networks=DEFAULTS.blocked_networks,
        allowed_networks=DEFAULTS.allowed_networks,
    )
    return replace(options, **changes)
