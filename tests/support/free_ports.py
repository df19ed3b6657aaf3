"""Find ports on which no process listens."""

import contextlib
import socket


def free_ports(host: str, count: int) -> list[int]:
    """All different."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((host, 0))
        return [probe.getsockname()[1] for probe in probes]
