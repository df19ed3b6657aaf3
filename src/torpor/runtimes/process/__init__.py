"""Run workspaces as process trees of this machine: the default runtime.

`await ProcessRuntime(data_dir).start()` ends processes of an earlier run; `await close()` ends all processes.
"""

from torpor.runtimes.ability import Ability
from torpor.runtimes.process.options import ProcessOptions
from torpor.runtimes.process.runtime import ProcessRuntime

__all__ = ["Ability", "ProcessOptions", "ProcessRuntime"]
