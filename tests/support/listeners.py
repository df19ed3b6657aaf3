"""Find where the processes of a workspace listen."""

import json
from pathlib import Path

from torpor.runtimes.process import processes
from torpor.runtimes.process.paths import RuntimePaths, short
from torpor.runtimes.process.processes import ProcessIdentity


def processes_of(paths: RuntimePaths, workspace_id: str) -> list[int]:
    record = paths.records / f"{short(workspace_id, 16)}.json"
    return [one.pid for one in processes.tree(ProcessIdentity(**json.loads(record.read_text())))]


def program_socket(paths: RuntimePaths, workspace_id: str) -> Path:
    """The socket of the program: inside its sandbox if it has one, else in a folder of this machine."""
    inside = [Path(f"/proc/{pid}/root/run/program/socket") for pid in processes_of(paths, workspace_id)]
    return next((path for path in inside if path.exists()), paths.program(workspace_id) / "socket")


def tcp_listeners(paths: RuntimePaths, workspace_id: str) -> list[str]:
    """The local TCP addresses in the format of the kernel."""
    found = []
    for pid in processes_of(paths, workspace_id):
        held = {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()}
        for table in ("tcp", "tcp6"):
            rows = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
            fields = [row.split() for row in rows]
            found += [row[1] for row in fields if row[3] == "0A" and f"socket:[{row[9]}]" in held]
    return found
