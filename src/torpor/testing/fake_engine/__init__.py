"""What would a container engine be that holds nothing but words, and is shared by any number of processes?"""

from torpor.testing.fake_engine.client import RemoteFakeArchives, RemoteFakeRuntime
from torpor.testing.fake_engine.control import EngineControl, EngineSnapshot

__all__ = ["EngineControl", "EngineSnapshot", "RemoteFakeArchives", "RemoteFakeRuntime"]
