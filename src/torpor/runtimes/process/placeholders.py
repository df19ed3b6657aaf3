"""What may a program's command refer to?

A template's command is a tuple of words; in each of them the following are replaced, because only the runtime knows where
things are inside the container. Anything else in braces is left as it is.

    {python}    the interpreter that Torpor itself runs on, without Torpor's packages
    {inside}    the folder `torpor/inside`, for what Torpor brings along (the terminal, for one)
    {site}      Torpor's site-packages, for PYTHONPATH of what is in {inside} and needs one of them
    {programs}  the environment in which the template's `packages` are installed ({programs}/bin/python, {programs}/bin/...)
    {port}      the port to listen on, on loopback; also in the environment as PORT
    {home}      the workspace's home; also in the environment as HOME

The same holds for the values of the program's environment.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

NAME = re.compile(r"\{([a-z]+)\}")


@dataclass(frozen=True, slots=True)
class Known:
    python: str
    inside: str
    site: str
    programs: str
    port: int
    home: str

    def fill(self, text: str) -> str:
        values: Mapping[str, str] = {name: str(getattr(self, name)) for name in self.__slots__}
        return NAME.sub(lambda found: values.get(found[1], found[0]), text)
