"""Define the errors of the sort, by who must act."""


class SortError(Exception):
    """The base of every error that the sort raises on purpose.

    SortError
      SortRefused       the caller must change something and call again
      PeerUnavailable   the master or a worker cannot be reached; the call is retried
        PeerNotReady    it was reached and is not ready; waiting for it uses up no retries
      StaleAttempt      another attempt of the same worker has taken over; this process ends
      SortFailed        bad input, a full disk, a file that cannot be read: the job fails
        JournalCorrupt  a journal that is incomplete or was changed; it counts as lost scratch
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
    """The master or a worker cannot be reached."""


class PeerNotReady(PeerUnavailable):
    """The master or a worker was reached and is not ready."""


class StaleAttempt(SortError):
    """Another attempt of the same worker has taken over."""


class SortFailed(SortError):
    """A retry cannot help; the job fails."""


class JournalCorrupt(SortFailed):
    """A journal is incomplete or was changed."""
