"""Count what one garbage collection did, and which archives and packs failed."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import structlog

from torpor.domain.errors import Deposed, TorporError, Unavailable
from torpor.loops import report_progress
from torpor.service.gc_plan import NAMED_AT_MOST, comparison_report, pack_report
from torpor.store.gc import ArchiveTotals, StoreComparison
from torpor.store.pack_gc import PackTotals

log = structlog.get_logger()


@dataclass(slots=True)
class GcTally:
    """The result of one collection so far."""

    begun_at: datetime
    compared: StoreComparison = field(default_factory=StoreComparison)
    removed: int = 0
    removed_packs: int = 0
    freed_bytes: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    unreadable_roots: dict[str, str] = field(default_factory=dict)
    """Archives of format 2 whose roots differ from the database, and why: nothing of their workspaces is removed."""

    @contextlib.contextmanager
    def alone(self, what: str) -> Iterator[None]:
        """Record an error of this one, so that it does not stop the others."""
        report_progress()
        try:
            yield
        except (Deposed, Unavailable):
            raise
        except Exception as error:
            log.warning("not_collected", what=what, why=words_of(error))
            self.failed[what] = words_of(error)

    def report(
        self, totals: ArchiveTotals | None = None, packs: PackTotals | None = None, *, skipped: str | None = None
    ) -> dict[str, Any]:
        return {
            "started_at": self.begun_at.isoformat(),
            "skipped": skipped,
            "kept": totals.kept if totals else None,
            "orphans": totals.orphans if totals else None,
            "removed": self.removed,
            "freed_bytes": self.freed_bytes,
            "failed": _first(self.failed),
            **comparison_report(self.compared),
            "packs": {
                "kept": packs.kept if packs else None,
                "orphans": packs.orphans if packs else None,
                "damaged": packs.damaged if packs else None,
                "removed": self.removed_packs,
                "unreadable_roots": _first(self.unreadable_roots),
                **pack_report(self.compared.packs),
            },
        }


def words_of(error: Exception) -> str:
    return error.message if isinstance(error, TorporError) else f"{type(error).__name__}: {error}"


def _first(reasons: dict[str, str]) -> dict[str, str]:
    return dict(list(reasons.items())[:NAMED_AT_MOST])
