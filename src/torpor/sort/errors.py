"""What can go wrong in a sort, and who must act?"""


class SortError(Exception):
    """The root of everything the sort raises on purpose.

    SortError
      Refused       the caller changes something and comes again
      Unavailable   somebody cannot be reached; it is tried again
        NotYet      somebody is there and not ready; waiting uses up no retries
      Stale         another attempt of the same worker has taken over; this process ends
      Broken        bad input, a full disk, a file that cannot be read: the job fails
        Torn        a journal that is incomplete or was changed; counts as lost scratch
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class SortRefused(SortError):
    """The caller must change something; `code` is stable."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class PeerUnavailable(SortError):
    """Somebody cannot be reached."""


class PeerNotReady(PeerUnavailable):
    """Somebody is there and not ready."""


class StaleAttempt(SortError):
    """Another attempt of the same worker has taken over."""


class SortFailed(SortError):
    """Trying again cannot help: the job fails."""


class JournalCorrupt(SortFailed):
    """A journal is incomplete or was changed."""
