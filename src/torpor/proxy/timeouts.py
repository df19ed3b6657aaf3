"""How long is whom waited for, and how much is held for them?"""

from dataclasses import dataclass

# What may lie here for one direction of one connection before its other side is not read from any more.
MOST_HELD_BYTES = 256 * 1024
READ_AGAIN_BYTES = 64 * 1024
# A head that comes again on its connection means the same again; so long are those that are remembered, one for each.
REMEMBERED_BYTES = 2048


@dataclass(frozen=True, slots=True)
class ProxyTimeouts:
    head_s: float = 30.0
    """For the whole of a request's head."""
    idle_s: float = 75.0
    """For the next request on a connection. Longer than most clients and balancers keep one."""
    body_s: float = 60.0
    """For the next bytes of a request's body."""
    connect_s: float = 10.0
    answer_s: float = 300.0
    """For an answer to begin, once nothing moves any more. Some programs think for minutes."""
    upgrade_s: float = 60.0
    """For the answer to an upgrade."""
    slow_s: float = 120.0
    """For a client that takes no byte of what there is for it."""
    half_closed_s: float = 60.0
    """A client that has closed its half may only be listening, or be gone: silence for so long means gone."""
    linger_s: float = 2.0
    """Closing on a client that still sends would destroy the answer on its way: it is listened to for so long."""
    farewell_s: float = 1.0
    """At the very end, for goodbyes to be heard."""
    kept_s: float = 4.0
    """For a connection to those behind that nobody uses. Many programs close theirs after 5 seconds."""
    look_s: float = 0.5
    """How often it is looked whose time is over."""
    most_newcomers: int = 1000
    """Connections that have not sent a whole head yet. They cost nothing but a place, and places are counted."""
    most_kept: int = 256
    """Connections to one address that are kept for the next request."""
