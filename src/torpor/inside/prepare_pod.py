"""Prepare a pod of a workspace, before its own container starts: the kit, the home's volume, and the key of the agent.

Runs in the image that contains the kit, by file path with one argument, JSON (`Preparation`). The key is in a Secret that only
this container mounts; the agent removes its copy of it when it has read it.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

TERMINATION_LOG = Path("/dev/termination-log")
WRONG_VOLUME = 65
"""The exit code: the volume is not the expected home."""
FAILED = 70


class Preparation(NamedTuple):
    kit_from: str
    kit_to: str
    volume: str
    birth: str
    is_made: bool
    marker: dict[str, Any]
    key_from: str
    key_to: str

    def argument(self) -> str:
        return json.dumps(self._asdict())


def prepare(wanted: Preparation) -> None:
    from torpor.inside.home_volume import prepare_volume, write_marker

    volume = Path(wanted.volume)
    prepare_volume(volume, wanted.birth, is_made=wanted.is_made)
    write_marker(volume, wanted.marker)
    shutil.copytree(wanted.kit_from, wanted.kit_to, symlinks=True, dirs_exist_ok=True, copy_function=shutil.copyfile)
    copy_modes(wanted.kit_from, wanted.kit_to)
    key = Path(wanted.key_from).read_bytes()
    descriptor = os.open(wanted.key_to, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as writing:
        writing.write(key)


def copy_modes(source: str, target: str) -> None:
    """Only that a file can be executed: the user cannot set times and owners of folders that belong to root."""
    for parent, _, names in os.walk(source):
        for name in names:
            path = os.path.join(parent, name)  # noqa: PTH118
            if os.access(path, os.X_OK) and not os.path.islink(path):  # noqa: PTH114
                os.chmod(os.path.join(target, os.path.relpath(path, source)), 0o755)  # noqa: PTH101, PTH118, S103


def say(message: str) -> None:
    """Kubernetes shows it in the status of the pod."""
    print(message, file=sys.stderr, flush=True)
    TERMINATION_LOG.write_text(message)


def main(argument: str) -> int:
    from torpor.inside.home_volume import WrongVolume

    try:
        prepare(Preparation(**json.loads(argument)))
    except WrongVolume as wrong:
        say(str(wrong))
        return WRONG_VOLUME
    except (OSError, shutil.Error) as error:
        say(f"the pod cannot be prepared: {error}")
        return FAILED
    return 0


if __name__ == "__main__":
    # The folder of `torpor.inside`, after the standard library, so that no module there is replaced.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # noqa: PTH100, PTH120
    sys.exit(main(sys.argv[1]))
