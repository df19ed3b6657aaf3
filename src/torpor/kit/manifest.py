"""Describe a kit: its content hash, what it is for, and the size of its parts."""

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from torpor.domain.errors import Hopeless
from torpor.kit import layout

FORMAT = 1
"""A kit of another format is built again."""

# Engines and images use other names than `uname -m`.
KERNEL_NAMES = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True, slots=True)
class KitManifest:
    """The content of `kit.json`."""

    format: int
    hash: str
    """Of all files with their paths and modes, and of the other fields that are not computed from the files."""
    architecture: str
    python: str
    torpor: str
    c_library: str
    loader: str
    size_bytes: int
    parts: Mapping[str, int]
    """Bytes of each part."""

    def to_json(self) -> bytes:
        return (json.dumps(asdict(self), indent=2) + "\n").encode()


@dataclass(frozen=True, slots=True)
class Kit:
    """A complete kit on this machine."""

    path: Path
    manifest: KitManifest

    def refuse_other_architecture(self, architecture: str) -> None:
        """Hopeless if an engine or an image has another CPU architecture, by the kernel's or the engines' name of it."""
        if KERNEL_NAMES.get(architecture, architecture) != self.manifest.architecture:
            raise Hopeless(
                f"this kit is for {self.manifest.architecture}, not for {architecture};"
                f" run Torpor on a machine with {architecture}, or choose an image for {self.manifest.architecture}"
            )


def describe(root: Path, *, loader: str, facts: Mapping[str, str]) -> KitManifest:
    """The manifest of a folder with all other files of a kit."""
    digest = hashlib.sha256(json.dumps([FORMAT, loader, sorted(facts.items())]).encode())
    parts: dict[str, int] = {}
    for path in files_of(root):
        content = path.read_bytes()
        name = path.relative_to(root).as_posix()
        mode = stat.S_IMODE(path.stat().st_mode)
        digest.update(f"\n{mode:o} {hashlib.sha256(content).hexdigest()} {name}".encode())
        parts[_part_of(name)] = parts.get(_part_of(name), 0) + len(content)
    return KitManifest(
        format=FORMAT,
        hash=digest.hexdigest(),
        **facts,
        loader=loader,
        size_bytes=sum(parts.values()),
        parts=dict(sorted(parts.items())),
    )


def load(root: Path) -> Kit | None:
    """The kit in this folder; None if there is none, or one of another format."""
    try:
        read = json.loads((root / layout.MANIFEST).read_bytes())
        manifest = KitManifest(**read)
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
        return None
    return Kit(root, manifest) if manifest.format == FORMAT and manifest.hash == root.name else None


def is_intact(kit: Kit) -> bool:
    """Whether every file is as it was built. Reads all of them."""
    facts = {name: getattr(kit.manifest, name) for name in ("architecture", "python", "torpor", "c_library")}
    return describe(kit.path, loader=kit.manifest.loader, facts=facts) == kit.manifest


def files_of(root: Path) -> Iterator[Path]:
    """All files except the manifest, in a fixed order."""
    found = [Path(parent, name) for parent, _, names in os.walk(root) for name in names]
    yield from sorted(path for path in found if path != root / layout.MANIFEST)


def _part_of(name: str) -> str:
    match name.split("/"):
        case ["bin", *_]:
            return "interpreter"
        case ["lib", _]:
            return "shared libraries"
        case ["lib", *_]:
            return "standard library"
        case ["site", package, *_]:
            return package
        case _:
            return "certificates"
