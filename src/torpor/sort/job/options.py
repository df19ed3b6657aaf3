"""Define the options of a sort and their defaults."""

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
    """The interval of a worker's heartbeats."""
    heartbeat_lost: float = 15.0
    """A worker without a heartbeat for this long counts as lost, but it may come back."""
    worker_grace: float = 600.0
    """The job fails when a worker is lost for this long."""
    master_grace: float = 600.0
    """A worker fails when it cannot reach the master for this long."""
    lock: float = 30.0
    """How long a worker waits for directories that another process has locked."""


@dataclass(frozen=True, slots=True)
class MasterOptions:
    workers: int
    state: Path
    listen: str = "127.0.0.1:0"
    format: Format | None = None
    """None: the workers' inputs decide."""
    proof: bool = True
    sync: bool = True
    tls: bool | None = None
    """None: on, except on the loopback."""
    join: Path | None = None
    """A secret that was made before. None: one is made and kept in the state directory."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    hold: Breakpoint | None = None
    job: str | None = None
    """None: a new name."""
    say: Callable[[str], None] = print
    """Prints the address, then the workers in order of their ranges."""


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
    """The ranges of files that are this worker's, as `run` divides them. None: all of the inputs."""
    share_output: bool = False
    """Other workers write their partitions into the same directory, as in `run`."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    hold: Breakpoint | None = None
    history: bool = False
    """Print the history also at the end of a job that succeeded."""


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """What the fork server needs to start one worker."""

    index: int
    options: WorkerOptions
    log: Path
    """The file that gets the worker's standard error."""


@dataclass(frozen=True, slots=True)
class LocalOptions:
    inputs: tuple[Path, ...]
    output: Path
    workers: int = 1
    """The most workers; a small input gets fewer."""
    min_share: int = MIN_SHARE
    """The least bytes of input for each worker; 0 starts all workers."""
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
    """Called several times a second with the status."""
