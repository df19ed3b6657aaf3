"""A WebSocket server that echoes messages. It uses only the standard library, so it also runs inside a workspace."""

import asyncio
import base64
import hashlib
import os
import re
import sys

MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Only short frames, because no others are sent here."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        key = re.search(rb"(?i)sec-websocket-key: *([^\r]+)", head)
        if key is None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return
        accepted = base64.b64encode(hashlib.sha1(key[1] + MAGIC).digest())
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n")
        writer.write(b"Sec-WebSocket-Accept: %s\r\n\r\n" % accepted)
        while True:
            kind, size = await reader.readexactly(2)
            mask = await reader.readexactly(4)
            payload = bytes(byte ^ mask[at % 4] for at, byte in enumerate(await reader.readexactly(size & 0x7F)))
            writer.write(bytes((kind, len(payload))) + payload)
            if kind & 0x0F == 0x8:
                return
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main() -> None:
    port = int(sys.argv[1] if len(sys.argv) > 1 else os.environ["PORT"])
    async with await asyncio.start_server(serve, "127.0.0.1", port, backlog=4096) as server:
        await server.serve_forever()
