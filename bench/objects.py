"""Count the requests to an object store for a home that is archived and restored.

The real jobs, with as much of S3 as an archive needs, on the loopback interface. `bench/archive.py` counts others.

    python bench/objects.py [--home-mb 10,1000] [--json]
"""

import argparse
import asyncio
import contextlib
import json
import os
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from urllib.parse import parse_qs, quote, unquote, urlsplit

from torpor.archives.archives import HomeArchives
from torpor.domain.records import ArchiveKey
from torpor.ports import Home, HomeJob

WRITES = ("begin upload", "put part", "end upload", "put")

BEGUN = "<InitiateMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><UploadId>{}</UploadId></InitiateMultipartUploadResult>"
ENDED = "<CompleteMultipartUploadResult><ETag>{}</ETag></CompleteMultipartUploadResult>"
LISTED = "<ListBucketResult><IsTruncated>false</IsTruncated>{}</ListBucketResult>"
LISTED_OBJECT = "<Contents><Key>{}</Key><LastModified>{}</LastModified><ETag>&quot;{}&quot;</ETag><Size>{}</Size></Contents>"
LISTED_FOLDER = "<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>"
EXISTS = b"<Error><Code>PreconditionFailed</Code></Error>"


class CountedStore:
    """Objects as files; every request is counted by its purpose."""

    def __init__(self, folder: Path) -> None:
        self.requests: Counter[str] = Counter()
        self.objects: dict[str, Path] = {}
        self._folder = folder
        self._uploads: dict[str, dict[int, Path]] = {}
        self._lock = Lock()
        self._count = 0
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                parts = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
                content = self.rfile.read(int(self.headers.get("content-length") or 0))
                kind = kind_of(self.command, query, has_range="range" in self.headers)
                store.count(kind)
                path = unquote(parts.path)
                is_create = self.headers.get("if-none-match") == "*"
                if kind == "put" and is_create and path in store.objects:
                    status, body, headers = 412, EXISTS, dict[str, str]()
                else:
                    status, body, headers = store.answer(kind, path, query, content, self.headers.get("range", ""))
                self.send_response(status)
                # A part has an ETag, too.
                for name, value in {
                    "etag": '"part"',
                    **store.version(path),
                    "content-length": str(len(body)),
                    **headers,
                }.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815 - http.server's names

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.options = {
            "endpoint": f"http://127.0.0.1:{self._server.server_port}",
            "allow_http": "true",
            "access_key_id": "a",
            "secret_access_key": "b",
            "region": "x",
        }

    def count(self, kind: str) -> None:
        with self._lock:
            self.requests[kind] += 1

    def answer(
        self, kind: str, path: str, query: dict[str, str], content: bytes, wanted: str
    ) -> tuple[int, bytes, dict[str, str]]:
        match kind:
            case "begin upload":
                upload = self._new_name()
                self._uploads[upload] = {}
                return 200, BEGUN.format(upload).encode(), {}
            case "put part":
                self._uploads[query["uploadId"]][int(query["partNumber"])] = self._kept(content)
                return 200, b"", {}
            case "end upload":
                pieces = self._uploads.pop(query["uploadId"])
                whole = self._folder / self._new_name()
                with whole.open("wb") as file:
                    for number in sorted(pieces):
                        file.write(pieces[number].read_bytes())
                        pieces[number].unlink()
                self.objects[path] = whole
                return 200, ENDED.format(quote(self.version(path)["etag"])).encode(), {}
            case "put":
                self.objects[path] = self._kept(content)
                return 200, b"", {}
            case "list":
                return 200, self._listed(path.rstrip("/"), query).encode(), {}
        if path not in self.objects:
            return 404, b"", {}
        size = self.objects[path].stat().st_size
        if kind == "head":
            return 200, b"", {"content-length": str(size)}
        if kind == "get":
            return 200, self.objects[path].read_bytes(), {}
        if kind == "delete":
            self.objects.pop(path).unlink()
            return 204, b"", {}
        assert kind == "get range", f"no answer for {kind}"
        first, last = (int(number) for number in wanted.removeprefix("bytes=").split("-"))
        with self.objects[path].open("rb") as file:
            file.seek(first)
            found = file.read(last - first + 1)
        return 206, found, {"content-range": f"bytes {first}-{first + len(found) - 1}/{size}"}

    def version(self, path: str) -> dict[str, str]:
        """The headers that tell whether an object is still the same."""
        if path not in self.objects:
            return {}
        kept = self.objects[path]
        return {"etag": f'"{kept.name}"', "last-modified": formatdate(kept.stat().st_mtime, usegmt=True)}

    def _listed(self, bucket: str, query: dict[str, str]) -> str:
        prefix, is_flat = query.get("prefix", ""), "delimiter" not in query
        keys = sorted(path.removeprefix(f"{bucket}/") for path in self.objects if path.startswith(f"{bucket}/{prefix}"))
        here = [key for key in keys if is_flat or "/" not in key.removeprefix(prefix)]
        folders = sorted({prefix + key.removeprefix(prefix).split("/")[0] + "/" for key in set(keys) - set(here)})
        found = []
        for key in here:
            seen = self.objects[f"{bucket}/{key}"].stat()
            changed = datetime.fromtimestamp(int(seen.st_mtime), UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
            found.append(LISTED_OBJECT.format(key, changed, self.objects[f"{bucket}/{key}"].name, seen.st_size))
        return LISTED.format("".join((*found, *map(LISTED_FOLDER.format, folders))))

    def _new_name(self) -> str:
        with self._lock:
            self._count += 1
            return f"object-{self._count}"

    def _kept(self, content: bytes) -> Path:
        path = self._folder / self._new_name()
        path.write_bytes(content)
        return path

    @contextlib.contextmanager
    def counting(self) -> Iterator[Counter[str]]:
        """The requests within the `with` block."""
        self.requests = Counter()
        yield self.requests

    def start(self) -> None:
        Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def kind_of(method: str, query: dict[str, str], *, has_range: bool) -> str:
    if method == "POST":
        return "begin upload" if "uploads" in query else "end upload"
    if method == "PUT":
        return "put part" if "uploadId" in query else "put"
    if method == "GET":
        return "get range" if has_range else "list" if "list-type" in query else "get"
    return method.lower()


@contextlib.contextmanager
def counted_store(above: Path | None = None) -> Iterator[CountedStore]:
    with tempfile.TemporaryDirectory(prefix="torpor-bench-", dir=above) as folder:
        store = CountedStore(Path(folder))
        store.start()
        try:
            yield store
        finally:
            store.stop()


@dataclass(frozen=True)
class Result:
    home_mb: int
    """Of random bytes: the archive is as long as the home."""
    archive_bytes: int
    objects: int
    archive_write_requests: int
    archive_read_requests: int
    """The whole archive is read back."""
    restore_read_requests: int
    archive_s: float
    restore_s: float


async def measure(home_mb: int) -> Result:
    with counted_store() as store, tempfile.TemporaryDirectory(prefix="torpor-bench-") as folder:
        home, back = Path(folder) / "home", Path(folder) / "back"
        home.mkdir()
        back.mkdir()
        for number in range(10):
            with (home / f"file-{number}").open("wb") as file:
                for _ in range(home_mb * 10):
                    file.write(os.urandom(10_000))
        return await slept_and_woken(store, home, back, home_mb)


async def slept_and_woken(store: CountedStore, home: Path, back: Path, home_mb: int) -> Result:
    archives = HomeArchives("s3://bench/archives", store.options)
    workspace_id = str(uuid.uuid4())
    key = ArchiveKey(workspace_id, str(uuid.uuid4()))
    with store.counting() as archived:
        began = time.perf_counter()
        await run_at(home, archives.pack_job(key, Home(workspace_id, 1), 1))
        archive_s = time.perf_counter() - began
    with store.counting() as restored:
        began = time.perf_counter()
        # As the controller does it: check that the archive is there, then fill the home.
        await archives.manifest_root(key)
        await run_at(back, archives.unpack_job(key))
        restore_s = time.perf_counter() - began
    await archives.close()
    written = sum(archived[kind] for kind in WRITES)
    assert not any(restored[kind] for kind in WRITES), "a restore writes nothing"
    return Result(
        home_mb=home_mb,
        archive_bytes=sum(path.stat().st_size for path in store.objects.values()),
        objects=len(store.objects),
        archive_write_requests=written,
        archive_read_requests=archived.total() - written,
        restore_read_requests=restored.total(),
        archive_s=round(archive_s, 2),
        restore_s=round(restore_s, 2),
    )


async def run_at(home: Path, job: HomeJob) -> None:
    process = await asyncio.create_subprocess_exec(
        *job.argv, str(home), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate(job.stdin)
    assert process.returncode == 0, said.decode()[-1000:]


async def main(homes_mb: list[int]) -> list[Result]:
    return [await measure(home_mb) for home_mb in homes_mb]


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--home-mb", default="10,1000")
    arguments.add_argument("--json", action="store_true")
    chosen = arguments.parse_args()
    measured = asyncio.run(main([int(size) for size in chosen.home_mb.split(",")]))
    if chosen.json:
        print(json.dumps([asdict(one) for one in measured]))
    else:
        for one in measured:
            print(one)
