"""How does a command ask a master or a worker that runs elsewhere?"""

from pathlib import Path

from torpor.sort.errors import Refused
from torpor.sort.status import JobStatus
from torpor.sort.wire.calls import GET_JOB_STATUS, GET_WORKER_STATUS
from torpor.sort.wire.connecting import Connection
from torpor.sort.wire.credentials import JOIN, Join, load_join, split_address
from torpor.sort.wire.failures import UNKNOWN_CALL
from torpor.sort.wire.requests import GetStatus, OwnStatus

CALL_S = 5.0


def ask_status(target: str, join_path: Path | None) -> JobStatus | OwnStatus:
    """The status of a job if the target is its master, or of one worker."""
    address, join = _resolve(target, join_path)
    # On the loopback, without TLS, the status needs no token.
    with Connection(address, join or Join("", address, False, "", "", "")) as connection:
        try:
            return connection.call(GET_JOB_STATUS, GetStatus(), CALL_S)
        except Refused as error:
            if error.code != UNKNOWN_CALL:
                raise
        return connection.call(GET_WORKER_STATUS, GetStatus(), CALL_S)


def _resolve(target: str, join_path: Path | None) -> tuple[str, Join | None]:
    """The address, and the join file's content if there is one; the target is an address, a state directory or a join file."""
    path = Path(target)
    if path.is_dir():
        path = path / JOIN
    if path.is_file() or path.name == JOIN:
        join = load_join(path)
        return join.address, join
    split_address(target)
    return target, None if join_path is None else load_join(join_path)
