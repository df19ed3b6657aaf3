"""Define how the engines that offer Docker's API differ: Docker itself, and Podman.

Pure. The client asks a dialect; no other module knows which engine it talks to.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from http import HTTPStatus
from typing import Any


class EngineKind(StrEnum):
    DOCKER = "docker"
    PODMAN = "podman"


PODMAN_COMPONENT = "Podman Engine"
"""The name of Podman's part in the answer to GET /version."""

NO_SPACE = "no space left on device"
NO_SPACE_HELP = (
    "the engine's disk is full. Delete workspaces, images or files that you do not need (`docker system df` shows what"
    " uses it), or enlarge the disk, and start again"
)
ABOUT_THE_CALL = (NO_SPACE, "OCI runtime", "exec format error")
"""Docker responds with status 500 to some mistakes of one call, too."""

PODMAN_MEANS = (
    ("is already in use", HTTPStatus.CONFLICT),
    ("already exists", HTTPStatus.CONFLICT),
    ("is being used", HTTPStatus.CONFLICT),
    (": file exists", HTTPStatus.CONFLICT),
    ("network not found", HTTPStatus.NOT_FOUND),
    ("no such container", HTTPStatus.NOT_FOUND),
    ("no such process", HTTPStatus.NOT_FOUND),  # it ended while the engine looked at it
    ("no such volume", HTTPStatus.NOT_FOUND),
    ("image not known", HTTPStatus.NOT_FOUND),
    ("container has already been removed", HTTPStatus.NOT_FOUND),
)
"""Podman responds with status 500 to most mistakes of a call. Its message ends with one of a fixed set of sentences."""

PODMAN_STATES = {"configured": "created", "initialized": "created", "stopping": "running", "stopped": "exited"}
"""Podman has more states of a container than Docker."""

LOCK_LIMIT = "exceeded num_locks"
LOCK_LIMIT_HELP = (
    "Podman has no lock left: each container and each volume needs one. Remove what you do not need, or set a higher"
    " num_locks in the section [engine] of containers.conf, stop all containers, and run `podman system renumber`"
)


class EngineDialect:
    """Docker's own. Podman's is the same but for the methods that it overrides."""

    kind = EngineKind.DOCKER
    removal_parameters: Mapping[str, str] = {"force": "1", "v": "1"}
    labels_silent_volumes = True
    """Whether a volume that the engine creates for a mount has the labels that the mount names."""

    event_filters: Mapping[str, list[str]] = {"type": ["container", "volume"], "event": ["die", "oom", "destroy"]}
    """Of the stream of events: what ends or is removed. The engine may send more."""

    volume_options: Mapping[str, str] = {}
    removes_by_prefix = False
    """Whether the removal of a volume that is missing removes another one, whose name begins with its name."""

    makes_bridge_late = False
    """Whether a network gets its bridge with its first container."""
    resolves_at_gateway = False
    """Whether containers ask the engine's resolver at the address of their gateway, which firewall rules close."""

    def state(self, state: str) -> str:
        """The state of a container, as Docker would call it."""
        return state

    def volume_filters(self, labels: Iterable[str], names: Iterable[str]) -> dict[str, list[str]]:
        """What the engine is asked for. It may return more, which the client leaves out."""
        return all_filters(labels, names)

    def status(self, status: int, message: str) -> int:
        """The status of a refusal, as Docker would have sent it."""
        return status

    def is_about_the_call(self, message: str) -> bool:
        """Whether an internal error of the engine concerns one call, and not the engine as a whole."""
        return any(words in message for words in ABOUT_THE_CALL)

    def explained(self, message: str) -> str:
        """The message of a refusal, with what to do if the engine does not say it."""
        return f"{message}; {NO_SPACE_HELP}" if NO_SPACE in message else message


class PodmanDialect(EngineDialect):
    kind = EngineKind.PODMAN
    # Otherwise the processes get SIGTERM and ten seconds first.
    removal_parameters: Mapping[str, str] = {**EngineDialect.removal_parameters, "timeout": "0"}
    labels_silent_volumes = False
    # Its names of events differ in filters and in the events themselves, and between versions.
    event_filters: Mapping[str, list[str]] = {"type": ["container", "volume"]}
    # Otherwise the first container that mounts a volume makes its user the owner of the volume's folder.
    volume_options: Mapping[str, str] = {"o": "uid=0,gid=0"}
    removes_by_prefix = True
    makes_bridge_late = True
    resolves_at_gateway = True

    def state(self, state: str) -> str:
        return PODMAN_STATES.get(state, state)

    def volume_filters(self, labels: Iterable[str], names: Iterable[str]) -> dict[str, list[str]]:
        """Podman returns the volumes that match any filter instead of all, so only the narrowest is sent."""
        first = list(labels)[:1]
        return {"name": wanted} if (wanted := list(names)) else {"label": first} if first else {}

    def status(self, status: int, message: str) -> int:
        if status != HTTPStatus.INTERNAL_SERVER_ERROR:
            return status
        return next((meant for words, meant in PODMAN_MEANS if words in message), status)

    def is_about_the_call(self, message: str) -> bool:
        return LOCK_LIMIT in message or super().is_about_the_call(message)

    def explained(self, message: str) -> str:
        return f"{message}; {LOCK_LIMIT_HELP}" if LOCK_LIMIT in message else super().explained(message)


def dialect_of(version: Mapping[str, Any]) -> EngineDialect:
    """The dialect of an engine, by its answer to GET /version."""
    components = {component.get("Name") for component in version.get("Components") or ()}
    return PodmanDialect() if PODMAN_COMPONENT in components else EngineDialect()


def all_filters(labels: Iterable[str], names: Iterable[str]) -> dict[str, list[str]]:
    """Docker's filters: all of these labels, and one of these in the name."""
    given = {"label": list(labels), "name": list(names)}
    return {filter_name: values for filter_name, values in given.items() if values}


def matches(name: str, labels: Mapping[str, str], wanted_labels: Iterable[str], names: Iterable[str]) -> bool:
    """Whether an object is one that was asked for."""
    parts = list(names)
    pairs = (label.partition("=") for label in wanted_labels)
    has_labels = all(labels.get(key) == value for key, _, value in pairs)
    return has_labels and (not parts or any(part in name for part in parts))
