"""Change and inspect the engine's state beyond the ports, for tests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torpor.domain.disk import Disk
from torpor.domain.records import ArchiveKey, Marker
from torpor.ports import Address, Home
from torpor.testing.fake_engine.client import EngineClient
from torpor.testing.fake_engine.protocol import address_words, bytes_of, home_words, marker_words, text_of
from torpor.testing.fake_runtime import FakeLogEntry


@dataclass(frozen=True, slots=True)
class EngineContainer:
    generation: int
    revision: int
    epoch: int
    ready: bool
    ended: bool


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """The whole state of the engine, also during a simulated outage."""

    log: tuple[FakeLogEntry, ...]
    overtaken: tuple[FakeLogEntry, ...]
    containers: Mapping[str, EngineContainer]
    volumes: Mapping[Home, Mapping[str, bytes]]
    archives: frozenset[str]


class EngineControl:
    """Tests simulate external events through it."""

    def __init__(self, path: Path) -> None:
        self._line = EngineClient(path)

    async def close(self) -> None:
        await self._line.close()

    async def inspect(self, *, log_since: int = 0) -> EngineSnapshot:
        log, overtaken, containers, volumes, archives = await self._line.look("inspect", log_since)
        return EngineSnapshot(
            tuple(FakeLogEntry(*entry) for entry in log),
            tuple(FakeLogEntry(*entry) for entry in overtaken),
            {name: EngineContainer(*held) for name, *held in containers},
            {Home(*home): {name: bytes_of(data) for name, data in files.items()} for *home, files in volumes},
            frozenset(archives),
        )

    async def set(
        self,
        *,
        runtime_out: bool | None = None,
        archives_out: bool | None = None,
        starts_ready: bool | None = None,
        effects_s: float | None = None,
        observed_slowly_s: float | None = None,
        address: Address | None = None,
        disk: Disk | None = None,
    ) -> None:
        """Change the given values; None means no change."""
        said = {
            "runtime_out": runtime_out,
            "archives_out": archives_out,
            "starts_ready": starts_ready,
            "effects_s": effects_s,
            "observed_slowly_s": observed_slowly_s,
            "address": address_words(address),
            "disk": [disk.path, disk.free_bytes] if disk is not None else None,
        }
        await self._line.look("set", {name: value for name, value in said.items() if value is not None})

    async def end_program(self, workspace_id: str, exit_code: int, last_lines: str) -> None:
        await self._line.look("end_program", workspace_id, exit_code, last_lines)

    async def stop_outside(self, workspace_id: str) -> None:
        await self._line.look("stop_outside", workspace_id)

    async def put_volume(self, home: Home, files: Mapping[str, bytes], marker: Marker | None = None) -> None:
        said = {name: text_of(data) for name, data in files.items()}
        await self._line.look("put_volume", home_words(home), said, marker_words(marker) if marker else None)

    async def destroy_volume(self, home: Home) -> None:
        await self._line.look("destroy_volume", home_words(home))

    async def spoil_marker(self, home: Home) -> None:
        await self._line.look("spoil_marker", home_words(home))

    async def lose_marker(self, home: Home) -> None:
        await self._line.look("lose_marker", home_words(home))

    async def lose_small_files(self, home: Home) -> None:
        await self._line.look("lose_small_files", home_words(home))

    async def put_pack(self, workspace_id: str, name: str, content: bytes) -> None:
        await self._line.look("put_pack", workspace_id, name, text_of(content))

    async def put_root(self, key: ArchiveKey, home: Home, names: Sequence[str]) -> None:
        """There is an archive of format 2 of an empty home, which names these packs."""
        await self._line.look("put_root", str(key), home_words(home), list(names))
