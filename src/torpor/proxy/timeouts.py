"""Set the timeouts and buffer sizes of the proxy's connections."""

from dataclasses import dataclass

# The buffer of one direction of a connection; when it is full, the other side is not read.
MOST_HELD_BYTES = 256 * 1024
READ_AGAIN_BYTES = 64 * 1024
# A head that repeats on its connection is not parsed again; heads up to this size are kept, one for each connection.
REMEMBERED_BYTES = 2048


@dataclass(frozen=True, slots=True)
class ProxyTimeouts:
    head_s: float = 30.0
    """For the whole head of a request."""
    idle_s: float = 75.0
    """For the next request on a connection. Longer than most clients and load balancers keep one."""
    body_s: float = 60.0
    """For the next bytes of a request's body."""
    connect_s: float = 10.0
    answer_s: float = 300.0
    """For the begin of a response, after the last byte of the request. Some programs compute for minutes."""
    upgrade_s: float = 60.0
    """For the response to an upgrade."""
    slow_s: float = 120.0
    """For a client that does not read its response."""
    half_closed_s: float = 60.0
    """A client that has closed its half may still read, or may be gone; after so long without data it counts as gone."""
    linger_s: float = 2.0
    """How long a closing connection is still read: closing while the client sends would destroy the response in transit."""
    farewell_s: float = 1.0
    """For close frames at the end of the process."""
    kept_s: float = 4.0
    """How long an idle connection to an upstream is kept. Many programs close theirs after 5 seconds."""
    look_s: float = 0.5
    """How often the timeouts are checked."""
    most_newcomers: int = 1000
    """Connections that have not sent a whole head yet. They cost only a slot, and slots are limited."""
    most_kept: int = 256
    """Idle connections to one address that are kept for the next request."""
