"""Serve one `FakeWorld` to any number of processes.

Like a real engine, it finishes an effect even if its client has ended, and a stopped client does not delay other clients.
"""

import asyncio
import contextlib
import os
import socket
import traceback
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from torpor.domain.disk import Disk
from torpor.domain.errors import Hopeless, TorporError
from torpor.domain.records import ArchiveKey, FileCount, Marker, ProgramExit
from torpor.ports import Fence, Home, Progress
from torpor.testing.fake_engine.programs import FakePrograms, programs_path
from torpor.testing.fake_engine.protocol import (
    Words,
    address_of,
    address_words,
    bytes_of,
    container_of,
    error_words,
    frame,
    home_words,
    job_of,
    listed_words,
    next_frame,
    pack_words,
    proven_words,
    survey_words,
    text_of,
)
from torpor.testing.fake_runtime import FakeArchives, FakeLogEntry, FakeRuntime, FakeVolume, FakeWorld, put_root

# The maximum of concurrent calls of one client. Unread answers are kept, so this limits the memory for a stopped client.
CALLS_AT_ONCE = 1024
LARGE_ANSWERS_AT_ONCE = 4
FOLLOW_S = 0.05
FOLLOW_TIMES = 200
"""How often `follow` checks for changes before it answers without one."""


class _Engine:
    def __init__(self, world: FakeWorld) -> None:
        self.world = world
        self.runtime = FakeRuntime(world)
        self.archives = FakeArchives(world)
        self.connections: set[asyncio.Task[None]] = set()

    async def follow(self, known: Words | None) -> Words:
        """Return the running containers and their address when they differ from what the client knows, or after a while."""
        for _ in range(FOLLOW_TIMES):
            stamp = [self.world.id, len(self.world.log), address_words(self.world.address)]
            if stamp != known:
                break
            await asyncio.sleep(FOLLOW_S)
        return [stamp, [name for name, held in self.world.containers.items() if held.ended is None]]

    def inspect(self, since: int) -> Words:
        world = self.world
        containers = [
            [name, held.container.home.generation, held.container.revision, held.epoch, held.ready, held.ended is not None]
            for name, held in world.containers.items()
        ]
        volumes = [
            [*home_words(home), {name: text_of(data) for name, data in volume.files.items()}]
            for home, volume in world.volumes.items()
        ]
        return [world.log[since:], world.overtaken, containers, volumes, list(world.archives)]

    def set(self, said: Mapping[str, Any]) -> None:
        for name, value in said.items():
            match name:
                case "address":
                    self.world.address = address_of(value)
                case "disk":
                    self.world.disk = Disk(*value)
                case _:
                    setattr(self.world, name, value)

    def end_program(self, workspace_id: str, exit_code: int, last_lines: str) -> None:
        self.world.containers[workspace_id].ended = ProgramExit(exit_code, last_lines)
        self.world.log.append(FakeLogEntry(self.world.clock(), "end_program", workspace_id, 0, ""))

    def stop_outside(self, workspace_id: str) -> None:
        self.world.containers[workspace_id].ended = ProgramExit(137, "", is_stopped_outside=True)
        self.world.log.append(FakeLogEntry(self.world.clock(), "end_program", workspace_id, 0, ""))

    def put_volume(self, home: Words, files: Mapping[str, str], marker: Words | None) -> None:
        data = {name: bytes_of(text) for name, text in files.items()}
        self.world.volumes[Home(*home)] = FakeVolume(data, Marker(*marker) if marker else None, is_half_made=marker is None)

    def destroy_volume(self, home: Words) -> None:
        del self.world.volumes[Home(*home)]

    def spoil_marker(self, home: Words) -> None:
        self.world.volumes[Home(*home)].is_illegible = True

    def lose_marker(self, home: Words) -> None:
        self.world.volumes[Home(*home)].marker = None

    def lose_small_files(self, home: Words) -> None:
        self.world.volumes[Home(*home)].lose_small_files()

    def put_pack(self, workspace_id: str, name: str, content: str) -> None:
        self.world.packs[workspace_id, name] = bytes_of(content)

    def put_root(self, key: str, home: Words, names: list[str]) -> None:
        put_root(self.world, ArchiveKey.parse(key), Home(*home), names)


async def _work(engine: _Engine) -> Words:
    return [[name, work.template, work.cpu_s] for name, work in (await engine.runtime.work()).items()]


async def _usage(engine: _Engine) -> Words:
    return [[name, usage.cpu_s, usage.memory_bytes] for name, usage in (await engine.runtime.usage()).items()]


async def _disk(engine: _Engine) -> Words | None:
    disk = await engine.runtime.disk()
    return [disk.path, disk.free_bytes] if disk is not None else None


async def _logs(engine: _Engine, workspace_id: str, tail: int) -> Words:
    return [text_of(line) async for line in engine.runtime.logs(workspace_id, tail=tail)]


async def _append_log(engine: _Engine, workspace_id: str, lines: str) -> None:
    await engine.runtime.append_log(workspace_id, bytes_of(lines))


async def _execute(engine: _Engine, workspace_id: str, command: list[str], stdin: str) -> Words:
    done = await engine.runtime.execute(workspace_id, command, bytes_of(stdin))
    return [done.exit_code, text_of(done.stdout), text_of(done.stderr)]


async def _require_running(engine: _Engine, workspace_id: str) -> None:
    engine.runtime.require_running(workspace_id)


async def _observe(engine: _Engine, only: list[str] | None) -> Words:
    return survey_words(await engine.runtime.observe(None if only is None else frozenset(only)))


async def _create_empty(engine: _Engine, key: str, home: Words, revision: int, format: int) -> Words:  # noqa: A002
    return proven_words(await engine.archives.create_empty(ArchiveKey.parse(key), Home(*home), revision, format=format))


async def _copy(engine: _Engine, source: str, target: str, progress: Progress) -> Words:
    return proven_words(await engine.archives.copy(ArchiveKey.parse(source), ArchiveKey.parse(target), progress))


async def _listing(engine: _Engine) -> Words:
    return [listed_words(found) async for found in engine.archives.listing()]


async def _root_packs(engine: _Engine, key: str) -> Words:
    facts = await engine.archives.root_packs(ArchiveKey.parse(key))
    return [facts.manifest_root, dict(facts.packs)]


async def _prove_pack(engine: _Engine, workspace_id: str, name: str, size_bytes: int) -> Words:
    return pack_words(await engine.archives.prove_pack(workspace_id, name, size_bytes))


async def _at_once(answer: object) -> object:
    return answer


Verb = Callable[..., Awaitable[object]]

# Effects, which are finished even if the client ends. Called with the engine, a progress function and the arguments.
EFFECTS: Mapping[str, Verb] = {
    "ensure_volume": lambda engine, _, home, fence: engine.runtime.ensure_volume(Home(*home), Fence(*fence)),
    "mark_volume": lambda engine, _, home, marker, fence: engine.runtime.mark_volume(
        Home(*home), Marker(*marker), Fence(*fence)
    ),
    "run_at_home": lambda engine, progress, home, job, fence: engine.runtime.run_at_home(
        Home(*home), job_of(job), Fence(*fence), progress
    ),
    "ensure_no_volume": lambda engine, _, home, fence, archived_revision: engine.runtime.ensure_no_volume(
        Home(*home), Fence(*fence), archived_revision=archived_revision
    ),
    "ensure_no_half_made": lambda engine, _, home, fence: engine.runtime.ensure_no_half_made(Home(*home), Fence(*fence)),
    "ensure_running": lambda engine, progress, container, fence: engine.runtime.ensure_running(
        container_of(container), Fence(*fence), progress
    ),
    "ensure_no_container": lambda engine, _, workspace_id, fence: engine.runtime.ensure_no_container(
        workspace_id, Fence(*fence)
    ),
    "admit": lambda engine, _, workspace_id, fence: engine.runtime.admit(workspace_id, Fence(*fence)),
    "create_empty": lambda engine, _, *said: _create_empty(engine, *said),
    "copy": lambda engine, progress, source, target: _copy(engine, source, target, progress),
    "remove": lambda engine, _, key: engine.archives.remove(ArchiveKey.parse(key)),
    "remove_pack": lambda engine, _, *said: engine.archives.remove_pack(*said),
}

# Queries, which are cancelled if the client ends.
LOOKS: Mapping[str, Verb] = {
    "world": lambda engine, _: engine.runtime.world(),
    "observe": lambda engine, _, only: _observe(engine, only),
    "work": lambda engine, _: _work(engine),
    "usage": lambda engine, _: _usage(engine),
    "disk": lambda engine, _: _disk(engine),
    "home_bytes": lambda engine, _, home: engine.runtime.home_bytes(Home(*home)),
    "execute": lambda engine, _, *said: _execute(engine, *said),
    "require_running": lambda engine, _, workspace_id: _require_running(engine, workspace_id),
    "logs": lambda engine, _, *said: _logs(engine, *said),
    "append_log": lambda engine, _, *said: _append_log(engine, *said),
    "manifest_root": lambda engine, _, key: engine.archives.manifest_root(ArchiveKey.parse(key)),
    "archives_world": lambda engine, _: engine.archives.world(),
    "reachable": lambda engine, _: engine.archives.reachable(),
    "listing": lambda engine, _: _listing(engine),
    "pack_size": lambda engine, _, *said: engine.archives.pack_size(*said),
    "root_packs": lambda engine, _, key: _root_packs(engine, key),
    "prove_pack": lambda engine, _, *said: _prove_pack(engine, *said),
    "follow": lambda engine, _, known: engine.follow(known),
    # used by EngineControl
    "inspect": lambda engine, _, since: _at_once(engine.inspect(since)),
    "set": lambda engine, _, said: _at_once(engine.set(said)),
    "end_program": lambda engine, _, *said: _at_once(engine.end_program(*said)),
    "stop_outside": lambda engine, _, *said: _at_once(engine.stop_outside(*said)),
    "put_volume": lambda engine, _, *said: _at_once(engine.put_volume(*said)),
    "destroy_volume": lambda engine, _, home: _at_once(engine.destroy_volume(home)),
    "spoil_marker": lambda engine, _, home: _at_once(engine.spoil_marker(home)),
    "lose_marker": lambda engine, _, home: _at_once(engine.lose_marker(home)),
    "lose_small_files": lambda engine, _, home: _at_once(engine.lose_small_files(home)),
    "put_pack": lambda engine, _, *said: _at_once(engine.put_pack(*said)),
    "put_root": lambda engine, _, *said: _at_once(engine.put_root(*said)),
}

VERBS = {**EFFECTS, **LOOKS}

# Their answers grow with the number of workspaces, so a call starts only after the client has read earlier answers.
LARGE = frozenset({"observe", "inspect", "listing"})


class _Connection:
    """One client with any number of concurrent calls, each answered when it is done."""

    def __init__(self, engine: _Engine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._engine = engine
        self._reader = reader
        self._writer = writer
        self._room = asyncio.Semaphore(CALLS_AT_ONCE)
        self._large = asyncio.Semaphore(LARGE_ANSWERS_AT_ONCE)
        self._calls: dict[int, tuple[str, asyncio.Task[None]]] = {}

    async def serve(self) -> None:
        outlives = EFFECTS
        try:
            await self._listen()
        except asyncio.CancelledError:
            outlives = {}
            raise
        finally:
            self._writer.close()
            calls = list(self._calls.values())
            for verb, call in calls:
                if verb not in outlives:
                    call.cancel()
            await asyncio.gather(*(call for _, call in calls), return_exceptions=True)

    async def _listen(self) -> None:
        """Until the client closes the connection, ends, or sends an invalid frame."""
        with contextlib.suppress(EOFError, OSError, ValueError):
            while True:
                # Before the read, so that the requests of a client that does not read answers stay in its memory.
                await self._room.acquire()
                number, verb, *said = await next_frame(self._reader)
                if verb != "cancel":
                    self._calls[number] = verb, asyncio.create_task(self._answer(number, verb, said))
                    continue
                self._room.release()
                await asyncio.sleep(0)  # a task that is cancelled before it starts would never answer
                if number in self._calls:
                    self._calls[number][1].cancel()

    async def _answer(self, number: int, verb: str, said: Words) -> None:
        def progress(done: int, total: int | None, files: FileCount | None = None) -> None:
            self._send([number, "progress", done, total] if files is None else [number, "progress", done, total, files])

        try:
            async with self._large if verb in LARGE else contextlib.nullcontext():
                self._send([number, "done", await VERBS[verb](self._engine, progress, *said)])
                await self._writer.drain()
        except ConnectionError:
            pass  # the client has closed the connection
        except asyncio.CancelledError:
            self._send([number, "broke", "Unavailable", "", "canceled", {}])
        except Exception as error:
            if not isinstance(error, TorporError):
                traceback.print_exc()
            self._send([number, "broke", *error_words(error)])
        finally:
            self._room.release()
            del self._calls[number]

    def _send(self, words: Words) -> None:
        if not self._writer.is_closing():
            self._writer.write(frame(words))


async def serve(world: FakeWorld, path: Path, stop: asyncio.Event, ready: Callable[[], None] = lambda: None) -> None:
    """Serve until `stop` is set. Only this user can connect, since a client has full access."""
    if await asyncio.to_thread(_is_served, path):
        raise Hopeless(f"another fake engine answers at {path}")
    engine, programs = _Engine(world), FakePrograms(world)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.ensure_future(_Connection(engine, reader, writer).serve())
        engine.connections.add(connection)
        connection.add_done_callback(engine.connections.discard)

    # Bound with a private umask instead of a later chmod, so that other users can never connect.
    mask = os.umask(0o177)
    try:
        servers = [await asyncio.start_unix_server(connected, path), await programs.serve(programs_path(path))]
    finally:
        os.umask(mask)
    engine.connections.add(asyncio.create_task(programs.cut_off()))
    try:
        ready()
        await stop.wait()
    finally:
        for server in servers:
            server.close()
        for connection in list(engine.connections):
            connection.cancel()
        await asyncio.gather(*engine.connections, return_exceptions=True)
        _remove(path)


def _remove(path: Path) -> None:
    for socket_path in (path, programs_path(path)):
        socket_path.unlink(missing_ok=True)


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
