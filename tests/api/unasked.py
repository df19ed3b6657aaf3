"""Placeholders for parts of the API that a test does not use."""

from typing import Any

from torpor.api.events import EventSources
from torpor.api.gc import GcSources

_nothing: Any = None
NO_EVENTS = EventSources(_nothing, _nothing, 30)
NO_USAGE: Any = None
NO_COLLECTING = GcSources(_nothing, _nothing, _nothing, _nothing)
