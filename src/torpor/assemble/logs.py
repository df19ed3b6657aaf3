"""Configure the format of log lines and where they are written."""

import sys
from typing import Any

import structlog
from structlog.typing import Processor

from torpor.assemble.streams import lossy_stream
from torpor.settings import Settings


def configure_log(settings: Settings) -> None:
    """Afterwards no log line or print raises: a line that cannot be written is dropped and counted."""
    last = (
        structlog.processors.JSONRenderer()
        if settings.log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr is not None and sys.stderr.isatty())
    )
    processors: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
        structlog.processors.format_exc_info,
        last,
    ]

    def lost(count: int) -> str:
        line: Any = {"event": "log_lines_lost", "count": count}
        for processor in processors:
            line = processor(None, "warning", line)
        return str(line)

    sys.stdout, sys.stderr = lossy_stream(sys.stdout, lost), lossy_stream(sys.stderr, lost)
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(settings.log_level),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
