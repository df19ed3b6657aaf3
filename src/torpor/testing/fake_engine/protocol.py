"""Encode requests, answers, records and errors between the fake engine and its clients.

A frame is four bytes of length and JSON. A client sends [number, verb, arguments...] and can cancel it: [number, "cancel"]. The
engine answers [number, "progress", done, total] any number of times, with or without [files, total] at the end, then [number,
"done", answer] or [number, "broke", kind, code, message, context]. A record is the list of its fields.
"""

import asyncio
import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

from torpor.domain.errors import Code, Failed, Refused, TorporError, Unavailable
from torpor.domain.records import (
    Archive,
    ArchiveKey,
    Marker,
    Observation,
    ObservedContainer,
    ObservedVolume,
    ProgramExit,
    ProvenArchive,
    ProvenPack,
    Survey,
)
from torpor.ports import Address, Container, Fence, Home, HomeJob, Limits, ListedArchive, ListedPack, Program

Words = list[Any]

MOST_BYTES = 256 << 20


# ── records ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def home_words(home: Home) -> Words:
    return [home.workspace_id, home.generation]


def fence_words(fence: Fence) -> Words:
    return [fence.op_id, fence.epoch]


def marker_words(marker: Marker) -> Words:
    return [marker.workspace_id, marker.generation, marker.manifest_root]


def container_words(container: Container) -> Words:
    ran, limits = container.program, container.limits
    program = [ran.template, ran.command, dict(ran.environment), ran.packages, ran.is_verbatim, ran.cpu_weight]
    program += [dict(ran.own_environment), ran.image, ran.npm]
    return [home_words(container.home), container.revision, program, [limits.memory_bytes, limits.processes, limits.cpu_cores]]


def container_of(words: Words) -> Container:
    home, revision, (template, command, environment, packages, is_verbatim, cpu_weight, own, image, npm), limits = words
    program = Program(template, tuple(command), environment, tuple(packages), is_verbatim, cpu_weight, own, image, tuple(npm))
    return Container(Home(*home), revision, program, Limits(*limits))


def job_words(job: HomeJob) -> Words:
    return [job.argv, text_of(job.stdin), job.writes]


def job_of(words: Words) -> HomeJob:
    argv, stdin, writes = words
    return HomeJob(tuple(argv), bytes_of(stdin), writes)


def proven_words(proven: ProvenArchive) -> Words:
    archive = proven.archive
    named = [str(archive.key), archive.generation, archive.revision, archive.manifest_root]
    packs = [[pack_words(pack) for pack in proven.packs], list(proven.lost)]
    return [named, packs, proven.size_bytes, proven.home_bytes, proven.files, proven.format, proven.new_bytes]


def proven_of(words: Words) -> ProvenArchive:
    (key, *named), (packs, lost), size_bytes, home_bytes, files, format, new_bytes = words  # noqa: A001
    archive = Archive(ArchiveKey.parse(key), *named)
    proven = tuple(ProvenPack(*pack) for pack in packs)
    return ProvenArchive(archive, size_bytes, home_bytes, files, format, new_bytes, proven, tuple(lost))


def pack_words(pack: ProvenPack) -> Words:
    return [pack.name, pack.size_bytes, pack.store_version, pack.is_read_back]


def listed_words(found: ListedArchive | ListedPack) -> Words:
    if isinstance(found, ListedPack):
        return ["pack", found.workspace_id, found.name, found.size_bytes, found.is_whole]
    return ["archive", str(found.key), found.is_whole]


def listed_of(words: Words) -> ListedArchive | ListedPack:
    kind, *said = words
    return ListedPack(*said) if kind == "pack" else ListedArchive(ArchiveKey.parse(said[0]), said[1])


def address_words(address: Address | None) -> Words | None:
    return [address.unix_path, address.host, address.port, text_of(address.preamble), text_of(address.key)] if address else None


def address_of(words: Words | None) -> Address | None:
    if not words:
        return None
    unix_path, host, port, preamble, key = words
    return Address(unix_path, host, port, bytes_of(preamble), bytes_of(key))


def text_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def bytes_of(text: str) -> bytes:
    return base64.b64decode(text)


def survey_words(survey: Survey) -> Words:
    return [
        [
            workspace_id,
            [_seen_volume(one) for one in seen.volumes],
            _seen_container(seen.container) if seen.container else None,
        ]
        for workspace_id, seen in survey.seen.items()
    ]


def _seen_volume(seen: ObservedVolume) -> Words:
    marker = marker_words(seen.marker) if seen.marker else None
    return [seen.generation, marker, seen.is_illegible, seen.fault, seen.home_at, seen.has_home]


def _seen_container(seen: ObservedContainer) -> Words:
    ended = [seen.ended.exit_code, seen.ended.last_lines, seen.ended.is_stopped_outside] if seen.ended else None
    return [seen.generation, seen.revision, seen.ready, ended, seen.is_paused]


def survey_of(words: Words) -> Survey:
    return Survey({workspace_id: _observation_of(volumes, container) for workspace_id, volumes, container in words})


def _observation_of(volumes: Words, container: Words | None) -> Observation:
    seen = frozenset(
        ObservedVolume(generation, Marker(*marker) if marker else None, *more) for generation, marker, *more in volumes
    )
    if container is None:
        return Observation(seen)
    generation, revision, ready, ended, is_paused = container
    return Observation(seen, ObservedContainer(generation, revision, ready, ProgramExit(*ended) if ended else None, is_paused))


# ── errors ────────────────────────────────────────────────────────────────────────────────────────────────────────────

MAKES: Mapping[str, Callable[[str, str, dict[str, Any]], TorporError]] = {
    "Refused": lambda code, message, context: Refused(code, message, **context),
    "Failed": lambda code, message, context: Failed(Code(code), message, **context),
    "Unavailable": lambda _code, message, context: Unavailable(message, **context),
}


def error_words(error: Exception) -> Words:
    if isinstance(error, Refused | Failed):
        return [type(error).__name__, str(error.code), error.message, error.context]
    if isinstance(error, Unavailable):
        return ["Unavailable", "", error.message, error.context]
    return ["Failed", Code.INTERNAL.value, f"the fake engine broke: {type(error).__name__}: {error}", {}]


# ── frames ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def frame(words: Words) -> bytes:
    text = json.dumps(words, separators=(",", ":"), default=str).encode()
    return len(text).to_bytes(4, "big") + text


async def next_frame(reader: asyncio.StreamReader) -> Words:
    """Raise EOFError (IncompleteReadError is one) at the end of the stream, and ValueError on an invalid frame."""
    length = int.from_bytes(await reader.readexactly(4), "big")
    if length > MOST_BYTES:
        raise ValueError(f"a frame of {length} bytes")
    words = json.loads(await reader.readexactly(length))
    if not isinstance(words, list):
        raise ValueError("a frame that is not a list")  # noqa: TRY004 - invalid data, as above
    return words
