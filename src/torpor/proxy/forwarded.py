"""Find the origin of a request from the headers of trusted proxies."""

from collections.abc import Sequence
from ipaddress import ip_address, ip_network

from torpor.domain.errors import Refused
from torpor.proxy.request_head import RequestHead, RequestOrigin

_SCHEMES = frozenset({b"http", b"https"})


class TrustedProxies:
    """X-Forwarded-For and X-Forwarded-Proto are believed only if a listed proxy sent them."""

    def __init__(self, trusted: Sequence[str]) -> None:
        try:
            self._networks = tuple(ip_network(one, strict=False) for one in trusted)
        except ValueError as error:
            raise Refused("bad_setting", f"a trusted proxy must be an address or a network: {error}") from error

    def believes(self, peer: str) -> bool:
        try:
            address = ip_address(peer)
        except ValueError:
            return False
        return any(address in network for network in self._networks)

    def origin(self, head: RequestHead, peer: str) -> RequestOrigin:
        """The origin of a request from a trusted proxy: the last hop that is not trusted."""
        client = peer
        for hop in reversed(b",".join(head.values(b"x-forwarded-for")).split(b",")):
            try:
                client = str(ip_address(hop.strip().decode("ascii")))
            except ValueError:
                # The values further left come from a source that sends invalid addresses.
                break
            if not self.believes(client):
                break
        schemes = head.values(b"x-forwarded-proto")
        scheme = schemes[-1].rpartition(b",")[2].strip().lower() if schemes else b"http"
        return RequestOrigin(client, scheme if scheme in _SCHEMES else b"http")
