"""A fake container engine: a process that serves one fake runtime and its archives to any number of processes."""

from torpor.testing.fake_engine.client import RemoteFakeArchives, RemoteFakeRuntime
from torpor.testing.fake_engine.control import EngineControl, EngineSnapshot

__all__ = ["EngineControl", "EngineSnapshot", "RemoteFakeArchives", "RemoteFakeRuntime"]
