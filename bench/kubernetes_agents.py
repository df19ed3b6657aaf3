"""Answer for the agents of many pods that have no process: one listener for all their addresses.

For `bench/kubernetes_scale.py`, in the network of its cluster. It proves that it knows the key of each pod and answers requests
as a real agent does whose program runs. It prints one line for each pod that is created: its name, and the monotonic time.

    python bench/kubernetes_agents.py KUBECONFIG NAMESPACE INSTALLATION_KEY
"""

import asyncio
import json
import socket
import sys
import time
from pathlib import Path
from typing import Any

from lightkube import KubeConfig
from lightkube.config.client_adapter import AsyncClient, ConnectionParams

from torpor.inside.agent import control, serve
from torpor.inside.control_frames import NO, OUTPUT, YES, frame
from torpor.inside.proof import container_key
from torpor.inside.proven_connection import accept_channel
from torpor.runtimes.object_labels import NONCE
from torpor.runtimes.running_container import AGENT_PORT

ORDERED = "torpor.bench/ordered"
"""Of a pod: it was created with its orders."""
MEASURED = {"cpu_s": 0.0, "memory_bytes": 0, "foregrounds": []}


class AllAgents:
    def __init__(self, installation_key: bytes) -> None:
        self._installation_key = installation_key
        self._nonces: dict[str, str] = {}
        """By the address of the pod."""
        self._ordered: set[str] = set()
        """The nonces of pods that have orders."""

    def heard(self, kind: str, pod: dict[str, Any]) -> None:
        if kind == "ADDED":
            print(pod["metadata"]["name"], time.monotonic(), flush=True)
        nonce = (pod["metadata"].get("annotations") or {}).get(NONCE, "")
        address = pod.get("status", {}).get("podIP")
        if kind == "DELETED":
            self._ordered.discard(nonce)
            if self._nonces.get(address) == nonce:
                del self._nonces[address]
        elif address and nonce:
            self._nonces[address] = nonce
            if ORDERED in pod["metadata"]["annotations"]:
                self._ordered.add(nonce)

    async def answer(self, connection: socket.socket) -> None:
        nonce = self._nonces.get(connection.getsockname()[0])
        if nonce is None:
            connection.close()
            return
        if await accept_channel(connection, container_key(self._installation_key, nonce)) is None:
            return

        async def handle(request: dict[str, Any], _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            match request.get("do"):
                case "orders":
                    self._ordered.add(nonce)
                    writer.write(frame(YES))
                case "state" | "probe":
                    writer.write(frame(YES if nonce in self._ordered else NO))
                case "environment":
                    writer.write(frame(OUTPUT, b"{}"))
                case "measure":
                    writer.write(frame(OUTPUT, json.dumps(MEASURED).encode()))
                case "stop" | "log":
                    writer.write(frame(OUTPUT))

        await control(connection, handle)


async def watch(kubeconfig: Path, namespace: str, agents: AllAgents) -> None:
    """Begins before the first pod is created."""
    config = KubeConfig.from_file(str(kubeconfig)).get()
    assert config is not None
    client = AsyncClient(config, ConnectionParams(timeout=None, trust_env=False))
    async with client.stream("GET", f"/api/v1/namespaces/{namespace}/pods", params={"watch": "true"}) as events:
        print("ready", flush=True)
        rest = b""
        async for data in events.aiter_bytes():
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                event = json.loads(line)
                agents.heard(event["type"], event["object"])
    raise AssertionError("the watch has ended")


async def main(kubeconfig: str, namespace: str, installation_key: str) -> None:
    agents = AllAgents(bytes.fromhex(installation_key))
    listening = socket.create_server(("", AGENT_PORT), backlog=4096)
    serving = asyncio.create_task(serve(listening, agents.answer))
    await watch(Path(kubeconfig), namespace, agents)
    await serving


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
