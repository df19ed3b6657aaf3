"""Read the reference of an image: REGISTRY/PATH:TAG or REGISTRY/PATH@DIGEST, with the defaults that Docker uses."""

import re
from dataclasses import dataclass

from torpor.domain.errors import Refused

DEFAULT_REGISTRY = "docker.io"
DEFAULT_FOLDER = "library"
"""On the default registry, the folder of names without a slash."""
DEFAULT_TAG = "latest"
LONGEST_REFERENCE = 512
LONGEST_REPOSITORY = 255

HOST = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*|\[[0-9a-fA-F:]+\])"
)
COMPONENT = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
HIGHEST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class ImageReference:
    registry: str
    """HOST or HOST:PORT."""
    path: str
    tag: str = ""
    """Empty if there is a digest: engines ignore the tag then."""
    digest: str = ""

    @property
    def repository(self) -> str:
        return f"{self.registry}/{self.path}"

    @property
    def version(self) -> str:
        """The digest or the tag."""
        return self.digest or self.tag

    def __str__(self) -> str:
        """The normalized reference, which names the same image on every engine."""
        return f"{self.repository}{'@' if self.digest else ':'}{self.version}"


def parse_image(text: str) -> ImageReference:
    """Refused `bad_image` with what is wrong, and how to write it."""
    if not text or len(text) > LONGEST_REFERENCE:
        raise _refused(text, f"it must have 1 to {LONGEST_REFERENCE} characters")
    if "://" in text:
        raise _refused(text, f"leave out {text.partition('://')[0]}://; a reference begins with the registry's host")
    if bad := next((one for one in text if not "!" <= one <= "~"), None):
        raise _refused(text, f"{bad!r} is not allowed in it")
    name, has_digest, digest = text.partition("@")
    if has_digest and not DIGEST.fullmatch(digest):
        raise _refused(text, "after @ comes a digest: sha256: and 64 hexadecimal digits in lower case")
    registry, path = _registry_and_path(name)
    path, has_tag, tag = path.partition(":")
    if has_tag and not TAG.fullmatch(tag):
        raise _refused(text, f"{tag!r} is not a tag: use 1 to 128 letters, digits, _, . and -, and begin with none of . and -")
    if fault := _registry_fault(registry) or _path_fault(path):
        raise _refused(text, fault)
    if registry == DEFAULT_REGISTRY and "/" not in path:
        path = f"{DEFAULT_FOLDER}/{path}"
    return ImageReference(registry, path, "" if digest else tag or DEFAULT_TAG, digest)


def image_fault(value: object) -> str | None:
    """What is wrong with the image of a template; None if it is valid."""
    if not isinstance(value, str):
        return 'must be the reference of an image, such as "docker.io/library/python:3.12"'
    try:
        parse_image(value)
    except Refused as refused:
        return refused.message
    return None


def _registry_and_path(name: str) -> tuple[str, str]:
    """As Docker: the first part is a registry only if it contains a dot or a port, or is `localhost`."""
    first, slash, rest = name.partition("/")
    if slash and (first == "localhost" or "." in first or ":" in first):
        # Older names of the same registry.
        return (DEFAULT_REGISTRY if first in ("index.docker.io", "registry-1.docker.io") else first), rest
    return DEFAULT_REGISTRY, name


def _registry_fault(registry: str) -> str | None:
    host, _, port = registry.rpartition(":") if re.search(r":[^\]]*$", registry) else (registry, "", "")
    if not HOST.fullmatch(host):
        return f"{registry!r} is not the host of a registry"
    is_port = not registry.endswith(":") and (not port or (port.isascii() and port.isdigit() and 0 < int(port) <= HIGHEST_PORT))
    return None if is_port else f"{registry!r} has no valid port"


def _path_fault(path: str) -> str | None:
    if path != path.lower():
        return f"{path!r} contains upper-case letters; write {path.lower()!r}"
    for part in path.split("/"):
        if not COMPONENT.fullmatch(part):
            return f"{part!r} is not a part of a name: use a-z, 0-9 and, between them, single . or _ or -"
    return f"the name has more than {LONGEST_REPOSITORY} characters" if len(path) > LONGEST_REPOSITORY else None


def _refused(text: str, fault: str) -> Refused:
    shown = text if len(text) <= LONGEST_REFERENCE else f"{text[:LONGEST_REFERENCE]}..."
    return Refused("bad_image", f"{shown!r} is not the reference of an image: {fault}. Example: python:3.12.", image=shown)
