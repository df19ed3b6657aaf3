"""Describe a network of the engine: a bridge of one installation, whose interface has a name that firewall rules can match."""

import hashlib
from dataclasses import dataclass

from torpor.runtimes.firewall_rules import FAMILY
from torpor.runtimes.object_labels import ObjectKind, labels

BRIDGE_NAME = "com.docker.network.bridge.name"
INTERCONNECTION = "com.docker.network.bridge.enable_icc"


@dataclass(frozen=True, slots=True)
class EngineNetwork:
    name: str
    installation: str

    @property
    def tag(self) -> str:
        """Tells this network apart from those of other installations, in names that must be short."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:10]

    @property
    def bridge(self) -> str:
        """The interface on the engine's machine; the kernel allows 15 characters."""
        return f"{FAMILY}-{self.tag}"

    def config(self) -> dict[str, object]:
        """The engine creates it from this: IPv4 only, and its containers cannot reach each other."""
        options = {BRIDGE_NAME: self.bridge, INTERCONNECTION: "false"}
        wanted = labels(self.installation, ObjectKind.NETWORK)
        return {"Name": self.name, "Driver": "bridge", "CheckDuplicate": True, "Options": options, "Labels": wanted}
