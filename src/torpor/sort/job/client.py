"""Ask a master or a worker for its status, and abort a job."""

from pathlib import Path

from torpor.sort.data.worker_directory import STATE
from torpor.sort.errors import SortRefused
from torpor.sort.job.status import JobStatus
from torpor.sort.wire.calls import ABORT_JOB, GET_JOB_STATUS, GET_WORKER_STATUS
from torpor.sort.wire.connection import Connection
from torpor.sort.wire.credentials import JOIN, JoinCredentials, load_join, split_address
from torpor.sort.wire.failures import UNKNOWN_CALL
from torpor.sort.wire.requests import Abort, GetStatus, OwnStatus, WorkerRef

CALL_S = 5.0
ABORT_S = 15.0
"""Longer than a master takes to save the abort, or to answer that it is busy."""


def ask_status(target: str, join_path: Path | None) -> JobStatus | OwnStatus:
    """The status of a job if the target is its master, or of one worker."""
    address, join = _resolve(target, join_path)
    # On the loopback, without TLS, the status needs no token.
    with Connection(address, join or JoinCredentials("", address, False, "", "", "")) as connection:
        try:
            return connection.call(GET_JOB_STATUS, GetStatus(), CALL_S)
        except SortRefused as error:
            if error.code != UNKNOWN_CALL:
                raise
        return connection.call(GET_WORKER_STATUS, GetStatus(), CALL_S)


def abort_job(target: str, join_path: Path | None, reason: str) -> str:
    """Fail the job of this master, so that all its workers remove their files. Returns the job's id."""
    address, join = _resolve(target, join_path)
    if join is None:
        raise SortRefused(
            "no_join", f"aborting a job needs its token, which {target} does not contain; give the join file with --join"
        )
    with Connection(address, join) as connection:
        try:
            connection.call(ABORT_JOB, Abort(WorkerRef(join.job), reason), ABORT_S)
        except SortRefused as error:
            if error.code != UNKNOWN_CALL:
                raise
            raise SortRefused("not_a_master", f"{address} is not a master; give the address of the job's master") from error
    return join.job


def _resolve(target: str, join_path: Path | None) -> tuple[str, JoinCredentials | None]:
    """The address, and the content of the join file if there is one.

    The target is an address, a join file, a state directory, or the output (or scratch) directory of `sort run`.
    """
    path = Path(target)
    if path.is_dir():
        of_run = path / STATE / "master" / JOIN
        path = of_run if of_run.is_file() else path / JOIN
    if path.is_file() or path.name == JOIN:
        join = load_join(path)
        return join.address, join
    split_address(target)
    return target, None if join_path is None else load_join(join_path)
