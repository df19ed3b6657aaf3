"""What became of a request? (The label `outcome` of `torpor_proxy_requests_total`.)"""

from enum import StrEnum


class Outcome(StrEnum):
    PLATFORM = "platform"
    """The platform answered."""
    WORKSPACE = "workspace"
    """A workspace answered."""
    TUNNEL = "tunnel"
    """It became a connection that stays, a WebSocket for one."""
    ASLEEP = "asleep"
    UNKNOWN = "unknown"
    """There is no such workspace."""
    CANNOT_TELL = "cannot_tell"
    """Where the workspace is could not be found out."""
    NO_ANSWER = "no_answer"
    """Nobody answered where it is."""
    MISDIRECTED = "misdirected"
    """A host name that is not ours."""
    CROSS_SITE = "cross_site"
    BAD_REQUEST = "bad_request"
    TOO_MANY = "too_many"
    CLIENT_GONE = "client_gone"
    """It hung up before it was answered."""
