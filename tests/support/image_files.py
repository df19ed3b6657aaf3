"""Write image files as `docker save` does, without an engine."""

import hashlib
import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any


def image_file(reference: str, root: bytes, **config: Any) -> bytes:
    """`root` is a tar archive. The configuration has Docker's names, such as Entrypoint."""
    facts = {
        "architecture": "amd64",
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(root).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [reference], "Layers": ["layer.tar"]}]
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content in (
            ("config.json", json.dumps(facts).encode()),
            ("layer.tar", root),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()


def busybox_image_file(reference: str, *entrypoint: str) -> bytes:
    """An image with one program, /busybox, which needs no library."""
    busybox = shutil.which("busybox")
    assert busybox, "the package busybox-static is missing"
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(Path(busybox).resolve(), "busybox")
    return image_file(reference, archive.getvalue(), Entrypoint=entrypoint)
