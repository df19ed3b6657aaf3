"""Parts of the API that a test does not ask anything of."""

from typing import Any

from torpor.api.events import Events
from torpor.api.gc import Collecting

_nothing: Any = None
NO_EVENTS = Events(_nothing, _nothing, 30)
NO_COLLECTING = Collecting(_nothing, _nothing, _nothing)
