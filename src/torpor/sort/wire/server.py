"""Serve the calls of a master or a worker."""

import errno
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import grpc

from torpor.sort.errors import SortRefused
from torpor.sort.wire.credentials import JoinCredentials, is_loopback, split_address
from torpor.sort.wire.guard import TokenInterceptor
from torpor.sort.wire.transport import server_options

WAITING_PER_THREAD = 8
"""Streams that may wait for a thread of a data server. Each holds at most one window of bytes. More are refused."""


@dataclass(frozen=True, slots=True)
class RpcServer:
    server: grpc.Server
    address: str
    """HOST:PORT, with the port that was chosen if any was allowed."""
    threads: ThreadPoolExecutor

    def stop(self, grace_s: float) -> None:
        """Take no more calls, wait so long for calls in progress, then cut them off."""
        self.server.stop(grace_s).wait()
        self.threads.shutdown(wait=False, cancel_futures=True)


def serve(
    handlers: Sequence[grpc.GenericRpcHandler], listen: str, join: JoinCredentials, threads: int, *, data: bool
) -> RpcServer:
    """Start a server with its own threads, so that data streams never use the threads for Abort, GetStatus and signals."""
    host, port = split_address(listen)
    _refuse_if_taken(host, port)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="sort-data" if data else "sort-control")
    server = grpc.server(
        pool,
        handlers=list(handlers),
        interceptors=[TokenInterceptor(join, open_status=is_loopback(host) and not join.tls)],
        options=server_options(data=data),
        maximum_concurrent_rpcs=threads * (1 + WAITING_PER_THREAD) if data else None,
    )
    bracketed = f"[{host}]" if ":" in host else host
    try:
        bound = (
            server.add_secure_port(
                f"{bracketed}:{port}", grpc.ssl_server_credentials([(join.private_key.encode(), join.certificate.encode())])
            )
            if join.tls
            else server.add_insecure_port(f"{bracketed}:{port}")
        )
    except RuntimeError as error:
        # Another process took the port after the check.
        raise SortRefused("port_in_use", f"listening on {listen} failed: {error}") from error
    server.start()
    return RpcServer(server, f"{bracketed}:{bound}", pool)


def _refuse_if_taken(host: str, port: int) -> None:
    """Try with a plain socket, because gRPC does not say why it cannot listen."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise SortRefused("bad_address", f"{host!r} is not a host to listen on: {error.strerror}") from error
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise SortRefused(
                    "port_in_use", f"port {port} of {host} is in use; choose another with --listen, or 0 for any"
                ) from error
            raise SortRefused("bad_address", f"listening on {host}:{port} failed: {error.strerror}") from error
