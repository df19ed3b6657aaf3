"""Make the needed paths accessible to a workspace's user below folders that only root may enter.

In a mount namespace of this process, each such folder (such as root's home) is covered by an empty one that every user may
enter, and the needed directories are mounted in it under their old paths. So all paths stay valid: links of virtual
environments, library paths of an interpreter, the home.
"""

import ctypes
import os
import stat

NEW_MOUNT_NAMESPACE = 0x20000
BIND, RECURSIVE, PRIVATE = 0x1000, 0x4000, 0x40000
MAY_ENTER = stat.S_IXOTH


def show(paths: tuple[str, ...]) -> None:
    """Needs the permission to mount, unless no folder is closed. The paths are directories, absolute and without links."""
    covers = {path: cover for path in sorted(set(paths)) if (cover := closed_above(path)) is not None}
    if not covers:
        return
    call("unshare", NEW_MOUNT_NAMESPACE)
    mount(None, "/", None, RECURSIVE | PRIVATE)
    opened = {path: os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for path in covers}
    for cover in sorted(set(covers.values())):
        mount("tmpfs", cover, "tmpfs", 0, "mode=0755")
    # In alphabetical order a folder comes before its content.
    for path, descriptor in opened.items():
        os.makedirs(path, mode=0o755, exist_ok=True)  # noqa: PTH103 - pathlib is slow to load
        mount(f"/proc/self/fd/{descriptor}", path, None, BIND | RECURSIVE)
        os.close(descriptor)


def closed_above(path: str) -> str | None:
    """The topmost folder above the path that other users may not enter; None if all are open."""
    above = ""
    for name in path.split("/")[1:-1]:
        above += f"/{name}"
        if not os.stat(above).st_mode & MAY_ENTER:  # noqa: PTH116
            return above
    return None


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> None:
    words = (text if text is None else text.encode() for text in (source, target, kind))
    call("mount", *words, flags, options.encode(), at=target)


def call(name: str, *arguments: object, at: str = "") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    passed = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in arguments]
    if getattr(libc, name)(*passed) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}", at or None)
