"""The S3 server of moto for tests, on loopback and in memory."""

import contextlib
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

from tests.support.free_ports import free_ports
from tests.support.s3_server import BUCKET, S3Server
from tests.support.waiting import wait_until

START_S = 60.0


@contextlib.contextmanager
def moto_server(host: str = "127.0.0.1") -> Iterator[S3Server]:
    (port,) = free_ports(host, 1)
    with tempfile.TemporaryDirectory(prefix="torpor-test-moto-") as folder:
        log = Path(folder, "log")
        with log.open("wb") as out:
            command = [sys.executable, "-m", "moto.server", "-H", host, "-p", str(port)]
            process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        try:
            wait_until(lambda: _answers(process, host, port), within_s=START_S, otherwise=log.read_text)
            server = S3Server(f"http://{host}:{port}")
            with urlopen(Request(f"{server.endpoint}/{BUCKET}", method="PUT"), timeout=START_S):
                yield server
        finally:
            process.kill()
            process.wait()


def _answers(process: "subprocess.Popen[bytes]", host: str, port: int) -> bool:
    assert process.poll() is None, "the server of moto has ended"
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, port)) == 0
