"""Define how the proxy reports the use of a workspace.

Every method returns at once and never raises: a report must not delay a byte.
"""

from typing import Protocol


class TrackedConnection(Protocol):
    """An open connection, or a request in progress, from its begin to its end."""

    def carried(self) -> None:
        """It transferred data, in either direction."""
        ...

    def is_no_use(self) -> None:
        """It stays open, but no longer keeps the workspace awake."""
        ...

    def closed(self) -> None:
        """May be called again."""
        ...


class WorkspaceUse(Protocol):
    """The use of one workspace by one client."""

    def requested(self) -> TrackedConnection:
        """A request is in progress: it counts as use until it is answered, even without data."""
        ...

    def connected(self) -> TrackedConnection:
        """A connection is open: it counts as use as long as it transfers data now and then."""
        ...


class UsageTracker(Protocol):
    def of(self, workspace_id: str, *, standby_ttl_s: float) -> WorkspaceUse: ...


class NoUsageTracker:
    """Records nothing: for the platform itself, and for a proxy without a bus."""

    def of(self, workspace_id: str, *, standby_ttl_s: float) -> WorkspaceUse:
        return self

    def requested(self) -> TrackedConnection:
        return self

    def connected(self) -> TrackedConnection:
        return self

    def carried(self) -> None:
        pass

    def is_no_use(self) -> None:
        pass

    def closed(self) -> None:
        pass


UNWATCHED = NoUsageTracker()
