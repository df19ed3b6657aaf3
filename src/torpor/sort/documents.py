"""Encode a record as a JSON document, and decode a document to the same record.

msgspec converts between records and plain values and checks the declared types. The text itself is written by `json`: a file's
name need not be UTF-8, and msgspec's own writer refuses such a name.
"""

import json
from pathlib import Path
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def encode(record: object) -> bytes:
    """The document in one line. ValueError if it could not be decoded again: a field has a value of a wrong type."""
    plain = _plain(record)
    _record(type(record), plain)
    return json.dumps(plain, separators=(",", ":"), allow_nan=False).encode()


def decode(kind: type[T], document: bytes) -> T:
    """ValueError if the document is not the JSON of such a record; it names the field that is wrong, missing or unknown."""
    return from_plain(kind, json.loads(document))


def from_plain(kind: type[T], plain: object) -> T:
    """`decode` for a document that was parsed before."""
    record = _record(kind, plain)
    # msgspec ignores unknown fields of a dataclass. They are in the document and not in the record.
    unknown = _first_unknown(plain, _plain(record))
    if unknown is not None:
        raise ValueError(f"this is not a {kind.__name__}: Object contains unknown field - at `${unknown}`")
    return record


def _plain(record: object) -> Any:
    return msgspec.to_builtins(record, str_keys=True, enc_hook=_path_to_text)


def _record(kind: type[T], plain: object) -> T:
    try:
        return msgspec.convert(plain, kind, str_keys=True, dec_hook=_path_from_text)
    except msgspec.ValidationError as error:
        raise ValueError(f"this is not a {kind.__name__}: {error}") from error


def _path_to_text(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(type(value).__name__)


def _path_from_text(kind: type, plain: object) -> Path:
    if kind is not Path:
        raise NotImplementedError(kind.__name__)
    if not isinstance(plain, str):
        raise ValueError(f"Expected a path, got `{plain!r}`")  # noqa: TRY004 (msgspec adds the field to a ValueError)
    return Path(plain)


def _first_unknown(plain: object, known: object) -> str | None:
    """The place, as msgspec writes it after `$`."""
    if isinstance(plain, dict) and isinstance(known, dict):
        for name, value in plain.items():
            if name not in known:
                return f".{name}"
            if (inner := _first_unknown(value, known[name])) is not None:
                return f".{name}{inner}"
    elif isinstance(plain, list) and isinstance(known, list | tuple):
        for number, value in enumerate(plain):
            if (inner := _first_unknown(value, known[number])) is not None:
                return f"[{number}]{inner}"
    return None
