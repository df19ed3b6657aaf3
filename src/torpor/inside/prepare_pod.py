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
    copy_folder(Path(wanted.kit_from), Path(wanted.kit_to))
    key = Path(wanted.key_from).read_bytes()
    descriptor = os.open(wanted.key_to, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as writing:
        writing.write(key)


def copy_folder(source: Path, target: Path) -> None:
    """With the times of files, by which Python recognises compiled modules. The target may belong to root."""
    target.mkdir(exist_ok=True)
    for entry in os.scandir(source):
        if entry.is_symlink():
            (target / entry.name).symlink_to(os.readlink(entry.path))  # noqa: PTH115 - of an entry
        elif entry.is_dir():
            copy_folder(source / entry.name, target / entry.name)
        else:
            shutil.copy2(entry.path, target / entry.name)


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
