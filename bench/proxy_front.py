"""Run our front beside its peers, in its own process, with routing and authentication.

The gate here does what the product's gate does for a known user and a running workspace: it looks up the host and the token's
digest, and checks that the user has access. `--product` of bench/proxy.py measures the product's own gate.
"""

import asyncio
import hashlib
from functools import lru_cache

import structlog

from torpor.assemble.process import event_loop_factory, raise_file_limit
from torpor.domain.hostnames import Hosts, WorkspaceHost
from torpor.ports import Address
from torpor.proxy.gate import Forward, Reply, Verdict
from torpor.proxy.outcomes import RequestOutcome
from torpor.proxy.request_head import RequestHead
from torpor.proxy.server import ProxyServer

UNKNOWN = Reply(404, RequestOutcome.UNKNOWN)
UNAUTHORIZED = Reply(401, RequestOutcome.UNAUTHORIZED)
SORRY = Reply(502, RequestOutcome.NO_ANSWER)


class KnownGate:
    """Knows one workspace and one user."""

    def __init__(self, port: int, upstream: Address, name: str, token: str) -> None:
        self._destination = lru_cache(maxsize=4096)(Hosts(f"http://localhost:{port}", "localhost").destination)
        self._owners = {name: "ada"}
        self._visitors = {hashlib.sha256(token.encode()).digest(): "ada"}
        self._upstream = upstream

    def judge(self, head: RequestHead, client: str) -> Verdict:
        where = self._destination(head.host)
        if not isinstance(where, WorkspaceHost) or where.name not in self._owners:
            return UNKNOWN
        shown = head.values(b"authorization")
        visitor = self._visitors.get(hashlib.sha256(shown[0].removeprefix(b"Bearer ")).digest()) if shown else None
        if visitor is None or visitor != self._owners[where.name]:
            return UNAUTHORIZED
        return Forward(self._upstream, RequestOutcome.WORKSPACE, SORRY, SORRY, bearer=visitor)


async def _front(port: str, upstream_port: str, name: str, token: str) -> None:
    gate = KnownGate(int(port), Address(host="127.0.0.1", port=int(upstream_port)), name, token)
    front = ProxyServer(gate, port=int(port), hosts=("127.0.0.1",))
    await front.start()
    await asyncio.Event().wait()


def main(port: str, upstream_port: str, name: str, token: str) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    raise_file_limit()
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        runner.run(_front(port, upstream_port, name, token))
