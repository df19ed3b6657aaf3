"""What can be chosen for a sort, and what holds if nothing is said?"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from torpor.sort.data.segments import Inputs
from torpor.sort.debug_breakpoints import Breakpoint
from torpor.sort.job.status import JobStatus
from torpor.sort.record import GENSORT, Format
from torpor.sort.sizes import GIB, MIN_SHARE


@dataclass(frozen=True, slots=True)
class Deadlines:
    """In seconds."""

    registration: float = 300.0
    heartbeat: float = 1.0
    """How often a worker tells how it is."""
    heartbeat_lost: float = 15.0
    """After so long without a heartbeat a worker counts as vanished, though it may come back."""
    worker_grace: float = 600.0
    """How long a vanished worker is waited for before the job fails."""
    master_grace: float = 600.0
    """How long a worker looks for a vanished master before it fails."""
    lock: float = 30.0
    """How long a worker waits for its directories when another process still holds them."""


@dataclass(frozen=True, slots=True)
class MasterOptions:
    workers: int
    state: Path
    listen: str = "127.0.0.1:0"
    format: Format | None = None
    """None: what the workers' inputs look like decides."""
    proof: bool = True
    sync: bool = True
    tls: bool | None = None
    """None: on, but not on the loopback."""
    join: Path | None = None
    """A secret that was made before; None: one is made and kept in the state directory."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    hold: Breakpoint | None = None
    job: str | None = None
    """None: a new name."""
    say: Callable[[str], None] = print
    """Takes the address, then the workers in order of their ranges."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    master: str
    join: Path
    inputs: tuple[Path, ...]
    output: Path
    scratch: Path | None = None
    """None: a hidden folder in the output directory."""
    memory: int = 2 * GIB
    index: int | None = None
    listen: str | None = None
    """HOST:PORT for signals, and the next port for parts; None: any ports where this machine reaches the master."""
    threads: int | None = None
    """None: as many as there are cores, at most eight."""
    resume: bool = True
    slice: Inputs | None = None
    """Which ranges of which files are this worker's, as `run` cuts them; None: all of the inputs."""
    share_output: bool = False
    """Other workers write their partitions into the same directory, as under `run`."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    hold: Breakpoint | None = None
    history: bool = False
    """Print the history at the end of a job that went well, too."""


@dataclass(frozen=True, slots=True)
class LocalOptions:
    inputs: tuple[Path, ...]
    output: Path
    workers: int = 1
    """At most: a small input gets fewer."""
    min_share: int = MIN_SHARE
    """The bytes of input that each worker gets at least; 0 starts all workers."""
    memory: int = 2 * GIB
    """For all workers together."""
    format: Format = GENSORT
    scratch: Path | None = None
    threads: int | None = None
    proof: bool = True
    sync: bool = True
    resume: bool = True
    tls: bool = False
    deadlines: Deadlines = field(default_factory=Deadlines)
    follow: Callable[[JobStatus], None] | None = None
    """Called several times a second with how it stands."""
