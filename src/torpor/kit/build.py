"""Build a kit in an empty folder: copy, remove paths of this machine, compile, and check that it runs."""

import os
import subprocess
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

from torpor.domain.errors import Hopeless
from torpor.kit import elf, layout
from torpor.kit.contents import KitContents, KitFile, private_paths, without_private_paths
from torpor.kit.manifest import KitManifest, describe, files_of

Progress: TypeAlias = Callable[[int, int], None]
"""Files done, and all files."""

BATCH = 50
"""Files that one process compiles."""
RUN_TIMEOUT_S = 300.0
LAST_BYTES = 2000
PROGRAM_MODE, DATA_MODE, FOLDER_MODE = 0o555, 0o444, 0o755
# Each file has the same time, so that an archive of the kit is always the same.
TIME_S = 946684800

SOURCES_KEPT = f"{layout.SITE}/torpor/"
"""These are started by path, and errors show their lines. Of everything else, the kit contains only the bytecode."""

# Run by the kit's own interpreter, which proves that it starts. A fixed order in a new process gives the same bytes each time.
# Unchecked: Python compares neither time nor content of the source, which never changes. The path in the code is that in a
# container.
COMPILE = """
import os, py_compile, sys
root, mount, kept = sys.argv[1:]
unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
for name in sys.stdin.read().split("\\n"):
    source = os.path.join(root, name)
    compiled = None if name.startswith(kept) else source + "c"
    py_compile.compile(source, compiled, f"{mount}/{name}", doraise=True, invalidation_mode=unchecked)
"""
# Every program of the kit can be imported, and its certificates can be read.
CHECK = """
import ssl, sys
import torpor.inside.agent, torpor.inside.terminal, torpor.archives.job
ssl.create_default_context(cafile=sys.argv[1])
"""


def build(contents: KitContents, root: Path, progress: Progress) -> KitManifest:
    """Fill `root`; Hopeless says what is wrong. The kit is complete when the manifest is written, which is last."""
    sources = [file.target for file in contents.files if file.target.endswith(".py")]
    total = len(contents.files) + len(sources)
    private = private_paths()
    for number, file in enumerate(contents.files, start=1):
        _place(file, root, contents.loader, private)
        progress(number, total)
    # -B: no module that these programs import is compiled a second time, with its path on this machine.
    python = (*layout.python_argv_anywhere(root, contents.loader), "-B")
    _compile(python, root, sources, lambda done: progress(len(contents.files) + done, total))
    _run([*python, "-c", CHECK, str(root / layout.CERTIFICATES)])
    for path in files_of(root):
        if path.suffix == ".pyc":
            path.chmod(DATA_MODE)
            os.utime(path, (TIME_S, TIME_S))
    manifest = describe(root, loader=contents.loader, facts=contents.facts)
    _write(root / layout.MANIFEST, manifest.to_json(), DATA_MODE)
    for parent, _, _ in os.walk(root, topdown=False):
        Path(parent).chmod(FOLDER_MODE)
        os.utime(parent, (TIME_S, TIME_S))
    return manifest


def _place(file: KitFile, root: Path, loader: str, private: Iterable[bytes]) -> None:
    target = root / file.target
    target.parent.mkdir(parents=True, exist_ok=True)
    content = file.read()
    if elf.is_elf(content):
        try:
            content = _adapted(file, elf.parse(content), loader)
        except elf.NotSupported as error:
            raise Hopeless(f"the kit cannot be built: {file.source!s} cannot be used: {error}") from error
        content = without_private_paths(content, private)
    _write(target, content, PROGRAM_MODE if elf.is_elf(content) else DATA_MODE)


def _adapted(file: KitFile, parsed: elf.ElfFile, loader: str) -> bytes:
    libraries = layout.MOUNT / layout.LIBRARIES
    if file.target == layout.PYTHON:
        return parsed.with_fixed_paths(str(libraries / loader), str(libraries))
    return parsed.without_search_path()


def _write(path: Path, content: bytes, mode: int) -> None:
    path.write_bytes(content)
    path.chmod(mode)
    os.utime(path, (TIME_S, TIME_S))


def _compile(python: tuple[str, ...], root: Path, sources: list[str], progress: Callable[[int], None]) -> None:
    batches = [sources[first : first + BATCH] for first in range(0, len(sources), BATCH)]
    argv = [*python, "-c", COMPILE, str(root), str(layout.MOUNT), SOURCES_KEPT]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        done = 0
        for batch, _ in zip(batches, pool.map(lambda batch: _run(argv, "\n".join(batch)), batches), strict=True):
            done += len(batch)
            progress(done)
    # Not earlier: the other processes import them.
    for name in sources:
        if not name.startswith(SOURCES_KEPT):
            (root / name).unlink()


def _run(argv: Sequence[str], given: str = "") -> None:
    try:
        ended = subprocess.run(
            argv, input=given.encode(), capture_output=True, env={}, cwd="/", timeout=RUN_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Hopeless(f"the kit cannot be built: its interpreter did not end within {RUN_TIMEOUT_S:g} s") from error
    if ended.returncode != 0:
        said = ended.stderr[-LAST_BYTES:].decode(errors="replace").strip()
        raise Hopeless(f"the kit cannot be built: its interpreter ended with exit code {ended.returncode}:\n{said}")
