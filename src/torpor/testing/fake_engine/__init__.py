"""What would a container engine be that holds nothing but words, and is shared by any number of processes?"""

from torpor.testing.fake_engine.client import RemoteFake, RemoteFakeArchives
from torpor.testing.fake_engine.control import Inspected, RemoteFate

__all__ = ["Inspected", "RemoteFake", "RemoteFakeArchives", "RemoteFate"]
