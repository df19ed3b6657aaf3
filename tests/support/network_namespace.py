"""Let this thread use the network of another process."""

import contextlib
import ctypes
import os
from collections.abc import Iterator

CLONE_NEWNET = 0x40000000


@contextlib.contextmanager
def network_of(pid: int) -> Iterator[None]:
    """Sockets that this thread creates, and processes that it starts, are in the network namespace of this process."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    other = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _enter(other)
        try:
            yield
        finally:
            _enter(own)
    finally:
        os.close(own)
        os.close(other)


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace")
