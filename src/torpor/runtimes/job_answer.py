"""Read what a job at a home writes: progress, and then its result or error. `torpor.ports.HomeJob` describes the lines."""

import json
from collections.abc import Mapping
from typing import Any

from torpor.domain.errors import Code, Failed
from torpor.domain.records import FileCount
from torpor.ports import JobProgress

STDERR_TAIL = 2000


class JobAnswer:
    def __init__(self, progress: JobProgress) -> None:
        self._progress = progress
        self._said: dict[str, Any] = {}
        self._errors = b""

    def take_line(self, line: bytes) -> None:
        """One line of standard output. Progress is reported at once; the last result or error counts."""
        try:
            said = json.loads(line)
        except ValueError:
            return  # output of a library
        match said:
            case {"progress": [int(done), int() | None as total], "files": [int(files), int() | None as files_total]}:
                self._progress(done, total, FileCount(files, files_total))
            case {"progress": [int(done), int() | None as total]}:
                self._progress(done, total)
            case {"result": dict()} | {"error": dict()}:
                self._said = said
            case _:
                pass

    def take_errors(self, data: bytes) -> None:
        """Standard error, of which the end is kept."""
        self._errors = (self._errors + data)[-STDERR_TAIL:]

    def outcome(self, exit_code: int) -> Mapping[str, object]:
        """The result; Failed if there is none."""
        errors = self._errors.decode(errors="replace").strip()
        match self._said:
            case {"error": dict(error)}:
                code = str(error.get("code"))
                context = {str(name): value for name, value in (error.get("context") or {}).items()}
                for taken in ("code", "message", "self"):
                    context.pop(taken, None)
                context["exit_code"] = exit_code
                if code not in set(Code):
                    context["said"] = code
                raise Failed(Code(code) if code in set(Code) else Code.INTERNAL, str(error.get("message")), **context)
            case {"result": dict(result)} if exit_code == 0:
                return result
            case _:
                message = f"the job ended with exit code {exit_code} and without a result: {errors}"
                raise Failed(Code.INTERNAL, message, exit_code=exit_code, stderr=errors)
