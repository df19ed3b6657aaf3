"""What does the front tell of the use that is made of a workspace?

Every verb returns at once and never fails: whoever listens must not delay a byte.
"""

from typing import Protocol


class TrackedConnection(Protocol):
    """A connection that stays, or a request under way, from its beginning to its end."""

    def carried(self) -> None:
        """Data went through it, in either direction."""
        ...

    def is_no_use(self) -> None:
        """It stays open, and keeps nothing awake from now on."""
        ...

    def closed(self) -> None:
        """May be said again."""
        ...


class WorkspaceUse(Protocol):
    """The use of one workspace by one client."""

    def requested(self) -> TrackedConnection:
        """A request is under way: that is use until it has been answered, however silently."""
        ...

    def connected(self) -> TrackedConnection:
        """A connection stays: that is use for as long as it carries data now and then."""
        ...


class UsageTracker(Protocol):
    def of(self, workspace_id: str, *, standby_ttl_s: float) -> WorkspaceUse: ...


class NoUsageTracker:
    """Where nobody wants to know: the platform itself, and a front without a bus."""

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
