"""Add up the progress of a pull from the lines that an engine sends. Pure.

A layer counts twice, because the engine first downloads it and then unpacks it.
"""

from collections.abc import Mapping
from typing import Any

DOWNLOADED = ("Download complete", "Verifying Checksum")
DONE = ("Pull complete", "Already exists")


class PullProgress:
    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        self._downloaded: dict[str, int] = {}
        self._unpacked: dict[str, int] = {}
        self._ticks = 0

    def add(self, line: Mapping[str, Any]) -> None:
        layer, status, detail = str(line.get("id", "")), line.get("status"), line.get("progressDetail")
        current, total = (_number(detail.get(name)) for name in ("current", "total")) if isinstance(detail, dict) else (0, 0)
        size = self._sizes[layer] = max(total, self._sizes.get(layer, 0))
        match status:
            case "Downloading":
                self._raise(self._downloaded, layer, current)
            case "Extracting":
                self._raise(self._downloaded, layer, size)
                self._raise(self._unpacked, layer, min(current, size))
            case _ if status in DOWNLOADED:
                self._raise(self._downloaded, layer, size)
            case _ if status in DONE:
                self._raise(self._downloaded, layer, size)
                self._raise(self._unpacked, layer, size)

    def wait(self) -> None:
        """The engine works without telling how far it is. One byte, so that the deadline of the operation moves."""
        self._ticks += 1

    @property
    def done(self) -> int:
        return self.received + self._ticks

    @property
    def received(self) -> int:
        """Without the time that was only waited."""
        return sum(self._downloaded.values()) + sum(self._unpacked.values())

    @property
    def total(self) -> int | None:
        """None as long as no size is known. Grows when the engine begins another layer."""
        return 2 * sum(self._sizes.values()) + self._ticks or None

    @staticmethod
    def _raise(counts: dict[str, int], layer: str, count: int) -> None:
        counts[layer] = max(count, counts.get(layer, 0))


def _number(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0
