"""A real S3 server for tests (SeaweedFS), on the address and with the data directory of the test."""

import contextlib
import json
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.free_ports import free_ports
from tests.support.waiting import wait_until
from torpor.archives.store import ArchiveStore, StoreAddress

WEED = str(Path(sys.executable).with_name("weed"))
START_S = 60.0
BUCKET = "torpor-tests"
ACCESS_KEY, SECRET_KEY = "torpor-tests", "a secret of the tests"


@dataclass(frozen=True)
class S3Server:
    endpoint: str

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
        }

    @property
    def options(self) -> dict[str, str]:
        """The same as options of a store."""
        return {
            "endpoint": self.endpoint,
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
            "region": "us-east-1",
        }

    def new_url(self) -> str:
        """An empty store: a prefix of its own in a bucket that exists."""
        return f"s3://{BUCKET}/{uuid.uuid4()}"


@contextlib.contextmanager
def s3_server(host: str | None = None) -> Iterator[S3Server]:
    # An address of its own: several servers, which begin to listen seconds after their ports were chosen, must not mix.
    host = host or f"127.{random.randrange(1, 255)}.{random.randrange(1, 255)}.{random.randrange(1, 255)}"
    folder = Path(tempfile.mkdtemp(prefix="torpor-test-s3-"))
    ports = free_ports(host, 8)
    servers = ("master", "volume", "filer", "s3")
    names = [f"{server}.{port}" for server in servers for port in ("port", "port.grpc")]
    options: dict[str, object] = dict(zip(names, ports, strict=True))
    identity = {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": [{"name": "tests", "credentials": [identity], "actions": ["Admin"]}]}))
    (folder / "data").mkdir()
    options |= {"dir": folder / "data", "ip": host, "ip.bind": host, "s3.config": config, "master.volumeSizeLimitMB": 64}
    words = [f"-{name}={value}" for name, value in options.items()]
    log = (folder / "log").open("wb")
    process = subprocess.Popen([WEED, "server", "-filer", "-s3", *words], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    log.close()
    try:
        wait_until(lambda: _answers(process, host, ports[6]), within_s=START_S, otherwise=(folder / "log").read_text)
        server = S3Server(f"http://{host}:{ports[6]}")
        # The first object makes the bucket. The server accepts connections before it can store something.
        store = ArchiveStore(StoreAddress.parse(server.new_url()), server.options, pauses_s=(1.0,) * 10)
        store.replace("first", b"")
        yield server
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


def _answers(process: "subprocess.Popen[bytes]", host: str, port: int) -> bool:
    assert process.poll() is None, "the S3 server has ended"
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, port)) == 0
