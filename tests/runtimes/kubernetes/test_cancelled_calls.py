"""A call to the cluster that is cancelled, at any moment, leaves no connection open."""

import asyncio
import contextlib
import gc
import ssl
import warnings
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.runtimes.kubernetes.test_cluster_listing import OPTIONS
from tests.support.kubernetes_certificates import Certificates
from torpor.runtimes.kubernetes.cluster_client import PODS, ClusterClient
from torpor.runtimes.kubernetes.options import KubernetesOptions

pytestmark = pytest.mark.anyio

REQUEST_END = b"\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
MOST_TURNS = 500
"""Of the event loop: a call has ended after about 20."""
CLOSING_TURNS = 5
"""Until a closed connection is gone."""


@pytest.fixture
async def options(tmp_path: Path) -> AsyncIterator[KubernetesOptions]:
    """Of an API server that answers each request with an empty object."""
    certificates = Certificates(tmp_path / "certificates")
    pair = certificates.server("server", addresses=["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while await reader.readuntil(REQUEST_END):
                writer.write(ANSWER)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as listener:
        port = listener.sockets[0].getsockname()[1]
        yield replace(OPTIONS, kubeconfig=certificates.kubeconfig(f"https://127.0.0.1:{port}", "torpor"))


async def turn(times: int) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


async def test_a_cancelled_call_closes_its_connection(options: KubernetesOptions) -> None:
    left_open: dict[int, list[str]] = {}
    for turns in range(MOST_TURNS):
        client = ClusterClient(options)
        client.connect()
        call = asyncio.ensure_future(client.get(PODS, "one"))
        await turn(turns)
        is_complete = call.done()
        call.cancel()
        await asyncio.wait([call])
        await client.close()
        with warnings.catch_warnings(record=True, category=ResourceWarning) as found:
            warnings.simplefilter("always")
            await turn(CLOSING_TURNS)
            gc.collect()
        if found:
            left_open[turns] = [str(warning.message) for warning in found]
        if is_complete:
            assert call.result() == {}
            break
    assert is_complete
    assert left_open == {}, "by how many turns of the loop the call was old"
