"""Replace the placeholders of `torpor.ports` in a template's command and in the values of its environment.

Other text in braces does not change.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

NAME = re.compile(r"\{([a-z]+)\}")


def uses_placeholder(name: str, texts: Iterable[str]) -> bool:
    return any(name in NAME.findall(text) for text in texts)


@dataclass(frozen=True, slots=True)
class Placeholders:
    python: str
    inside: str
    site: str
    programs: str
    port: int
    socket: str
    home: str

    def fill(self, text: str) -> str:
        values: Mapping[str, str] = {name: str(getattr(self, name)) for name in self.__slots__}
        return NAME.sub(lambda found: values.get(found[1], found[0]), text)
