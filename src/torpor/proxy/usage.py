"""What does the front tell of the use that is made of a workspace?

Every verb returns at once and never fails: whoever listens must not delay a byte.
"""

from typing import Protocol


class Tie(Protocol):
    """A connection that stays, from its beginning to its end."""

    def carried(self) -> None:
        """Data went through it, in either direction."""
        ...

    def closed(self) -> None: ...


class Use(Protocol):
    """The use of one workspace by one client."""

    def touched(self) -> None:
        """It was asked for something, or something of its answer went through."""
        ...

    def connected(self) -> Tie: ...


class Usage(Protocol):
    def of(self, workspace_id: str, *, standby_ttl_s: float) -> Use: ...


class Unwatched:
    """Where nobody wants to know: the platform itself, and a front without a bus."""

    def of(self, workspace_id: str, *, standby_ttl_s: float) -> Use:
        return self

    def touched(self) -> None:
        pass

    def connected(self) -> Tie:
        return self

    def carried(self) -> None:
        pass

    def closed(self) -> None:
        pass


UNWATCHED = Unwatched()
