"""Run a job at a home in a container of an engine, after a check that the mounted volume is this home.

An engine creates an empty volume if a container refers to one that is missing, and an empty home must never be archived as
the real one. Run by file path: `home_job.py FILE BIRTH ARGV...`. The first process of a container ignores signals that it
does not handle, so it passes SIGTERM on to the job.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path


def main(file: str, birth: str, argv: list[str]) -> int:
    try:
        found = Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        found = str(error)
    if found != birth:
        message = f"the volume that the engine mounted is not this home: {file}: {found}"
        print(json.dumps({"error": {"code": "VOLUME_NOT_READY", "message": message}}), flush=True)
        return 1
    job = subprocess.Popen(argv)
    signal.signal(signal.SIGTERM, lambda *_: job.terminate())
    code = job.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
