"""Convert the document of a journal of version 2 to the present version.

Version 2 wrote bytes as hexadecimal digits and a `Boundary` as an object. Version 4 writes base64 and an array.
A job that was interrupted before an upgrade goes on after it.
"""

import base64
from typing import Any

KEYS_OF_AN_OUTPUT = ("first_key", "last_key")


def to_present_version(plain: Any) -> Any:
    """The plain values of the document. ValueError if they are not of version 2."""
    match plain:
        case {"key": str(key), "worker": worker, "position": position}:
            return [_base64(key), worker, position]
        case {"keys": list(keys), "records": records}:
            return {"keys": [[_base64(key), position] for key, position in keys], "records": records}
        case dict():
            return {
                name: _base64(value) if name in KEYS_OF_AN_OUTPUT else to_present_version(value)
                for name, value in plain.items()
            }
        case list():
            return [to_present_version(value) for value in plain]
        case _:
            return plain


def _base64(digits: str) -> str:
    return base64.b64encode(bytes.fromhex(digits)).decode()
