"""Workspaces as process trees of this machine: the embedded default.

`ProcessRuntime(data_dir)`; `await start()` sweeps what an earlier life left behind; `await close()` ends everything.
"""

from torpor.runtimes.process.confinement import Ability
from torpor.runtimes.process.options import ProcessOptions
from torpor.runtimes.process.runtime import ProcessRuntime

__all__ = ["Ability", "ProcessOptions", "ProcessRuntime"]
