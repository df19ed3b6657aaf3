"""How does a value become plain JSON, and the same value again?

Both directions follow the declared types, so what could not be read again is refused when it is written.
"""

import math
import types
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Literal, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]
T = TypeVar("T")
Turn = Callable[[Any], Any]

TAG = "is"
"""Names the class where a value may be of one of several; to Python it is a keyword, so no field is called so."""


class _Wrong(ValueError):
    """Something is wrong at a place that is known only on the way out."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.path: list[str] = []

    def under(self, step: object) -> "_Wrong":
        self.path.insert(0, str(step))
        return self


def to_plain(value: object, declared: Any = None) -> Plain:
    """What `json.dumps` takes; `declared` is needed where the value's own class does not say enough: collections, unions."""
    kind: Any = type(value) if declared is None else declared
    plain: Plain = _at_its_place(_turns(kind)[0], value)
    return plain


def from_plain(declared: type[T], plain: object) -> T:
    """The value again; ValueError names the place in the document and what is wrong there."""
    kind: Any = declared
    value: T = _at_its_place(_turns(kind)[1], plain)
    return value


def _at_its_place(turn: Turn, value: object) -> Any:
    try:
        return turn(value)
    except _Wrong as wrong:
        raise ValueError(f"{'.'.join(wrong.path) or 'the document'}: {wrong.what}") from None


@cache
def _turns(declared: Any) -> tuple[Turn, Turn]:
    """The way there and the way back for one declared type."""
    if isinstance(declared, NewType):
        return _turns(declared.__supertype__)
    if declared is None or declared is types.NoneType:
        return _scalar(type(None))
    if declared in (bool, int, str):
        return _scalar(declared)
    if declared is float:
        return _float, _float
    if declared is bytes:
        return _hex, _unhex
    if declared is Path:
        return _path_text, _path
    origin, arguments = get_origin(declared), get_args(declared)
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is Literal:
        return _literal(arguments)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(*arguments)
    if origin is not None and issubclass(origin, Set):
        return _set(arguments[0])
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        return _fixed_tuple(arguments)
    if origin is not None and issubclass(origin, Sequence):
        return _sequence(arguments[0], list if origin is list else tuple)
    if isinstance(declared, type) and issubclass(declared, Enum):
        return _enum(declared)
    if _has_fields(declared):
        return _fields(declared)
    raise TypeError(f"the codec does not know {declared!r}")


def _has_fields(declared: Any) -> bool:
    return isinstance(declared, type) and (is_dataclass(declared) or hasattr(declared, "_fields"))


def _expect(value: object, kind: type | tuple[type, ...], name: str) -> None:
    # To Python a bool is an int; to the document it is not.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind in (int, (int, float))):
        raise _Wrong(f"{name} was expected, not {_short(value)}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


NAMES = {type(None): "null", bool: "true or false", int: "a whole number", str: "a text"}


def _scalar(kind: type) -> tuple[Turn, Turn]:
    name = NAMES[kind]

    def turn(value: object) -> object:
        _expect(value, kind, name)
        return value

    return turn, turn


def _path_text(value: object) -> str:
    _expect(value, Path, "a path")
    return str(value)


def _path(plain: Any) -> Path:
    _expect(plain, str, "a path")
    return Path(plain)


def _float(value: Any) -> float:
    _expect(value, (int, float), "a number")
    if not math.isfinite(value):
        raise _Wrong(f"a finite number was expected, not {value!r}")
    return float(value)


def _hex(value: Any) -> str:
    _expect(value, bytes, "bytes")
    return str(value.hex())


def _unhex(plain: Any) -> bytes:
    _expect(plain, str, "a text of hexadecimal digits")
    try:
        return bytes.fromhex(plain)
    except ValueError:
        raise _Wrong(f"a text of hexadecimal digits was expected, not {_short(plain)}") from None


def _enum(declared: type[Enum]) -> tuple[Turn, Turn]:
    members = {member.value: member for member in declared}

    def there(value: Any) -> Any:
        _expect(value, declared, f"a member of {declared.__name__}")
        return value.value

    def back(plain: Any) -> Enum:
        if isinstance(plain, bool | int | str) and plain in members:
            return members[plain]
        raise _Wrong(f"one of {', '.join(map(str, members))} was expected, not {_short(plain)}")

    return there, back


def _literal(allowed: tuple[Any, ...]) -> tuple[Turn, Turn]:
    def turn(value: object) -> object:
        if value not in allowed:
            raise _Wrong(f"one of {', '.join(map(str, allowed))} was expected, not {_short(value)}")
        return value

    return turn, turn


def _each(turn: Turn, values: Any) -> list[Any]:
    found: list[Any] = []
    for value in values:
        try:
            found.append(turn(value))
        except _Wrong as wrong:
            raise wrong.under(len(found)) from None
    return found


def _sequence(inner: Any, kind: type) -> tuple[Turn, Turn]:
    def there(value: Any) -> list[Any]:
        _expect(value, (list, tuple), "a sequence")
        return _each(_turns(inner)[0], value)

    def back(plain: Any) -> Any:
        _expect(plain, list, "a list")
        return kind(_each(_turns(inner)[1], plain))

    return there, back


def _fixed_tuple(inner: tuple[Any, ...]) -> tuple[Turn, Turn]:
    def each(values: Any, direction: int) -> list[Any]:
        if len(values) != len(inner):
            raise _Wrong(f"{len(inner)} values were expected, not {len(values)}")
        pairs = iter(inner)
        return _each(lambda value: _turns(next(pairs))[direction](value), values)

    def there(value: Any) -> list[Any]:
        _expect(value, tuple, "a tuple")
        return each(value, 0)

    def back(plain: Any) -> tuple[Any, ...]:
        _expect(plain, list, "a list")
        return tuple(each(plain, 1))

    return there, back


def _set(inner: Any) -> tuple[Turn, Turn]:
    def there(value: Any) -> list[Any]:
        _expect(value, (set, frozenset), "a set")
        # Sets have no order, and equal values must give equal documents.
        return sorted(_each(_turns(inner)[0], value), key=repr)

    def back(plain: Any) -> frozenset[Any]:
        _expect(plain, list, "a list")
        found = frozenset(_each(_turns(inner)[1], plain))
        if len(found) != len(plain):
            raise _Wrong("a set was expected, not a list that says something twice")
        return found

    return there, back


def _mapping(key: Any, inner: Any) -> tuple[Turn, Turn]:
    if not _is_name(key):
        return _pairs(key, inner)

    def there(value: Any) -> dict[str, Any]:
        _expect(value, Mapping, "a mapping")
        names, found = _turns(key)[0], _turns(inner)[0]
        return {str(_under(name, names, name)): _under(name, found, each) for name, each in value.items()}

    def back(plain: Any) -> dict[Any, Any]:
        _expect(plain, dict, "an object")
        found = _turns(inner)[1]
        return {_under(name, _key, name): _under(name, found, each) for name, each in plain.items()}

    names = {} if key in (str, int) else {str(member.value): member for member in key}

    def _key(name: str) -> Any:
        if key is str:
            return name
        if key is int:
            # Nothing but the one way in which it is written, so that no two names mean one number.
            if name.removeprefix("-").isdecimal() and str(int(name)) == name:
                return int(name)
            raise _Wrong("a whole number was expected as name")
        if name in names:
            return names[name]
        raise _Wrong(f"one of {', '.join(names)} was expected as name")

    return there, back


def _is_name(key: Any) -> bool:
    return key in (str, int) or (isinstance(key, type) and issubclass(key, Enum))


def _under(step: object, turn: Turn, value: object) -> Any:
    try:
        return turn(value)
    except _Wrong as wrong:
        raise wrong.under(step) from None


def _pairs(key: Any, inner: Any) -> tuple[Turn, Turn]:
    """A mapping whose keys are no names: a list of pairs."""
    pair = tuple[key, inner]

    def there(value: Any) -> list[Any]:
        _expect(value, Mapping, "a mapping")
        return _each(_turns(pair)[0], value.items())

    def back(plain: Any) -> dict[Any, Any]:
        _expect(plain, list, "a list of pairs")
        found = dict(_each(_turns(pair)[1], plain))
        if len(found) != len(plain):
            raise _Wrong("a mapping was expected, not pairs that name a key twice")
        return found

    return there, back


def _fields(declared: Any) -> tuple[Turn, Turn]:
    names = [field.name for field in fields(declared) if field.init] if is_dataclass(declared) else list(declared._fields)

    @cache  # Only when first used: a class may hold others of its own kind.
    def inner() -> list[tuple[str, Turn, Turn]]:
        hints = get_type_hints(declared)
        return [(name, *_turns(hints[name])) for name in names]

    def there(value: Any) -> dict[str, Any]:
        if type(value) is not declared:
            raise _Wrong(f"{declared.__name__} was expected, not {_short(value)}")
        return {name: _under(name, turn, getattr(value, name)) for name, turn, _ in inner()}

    def back(plain: Any) -> Any:
        _expect(plain, dict, f"an object ({declared.__name__})")
        for name in plain:
            if name not in names:
                raise _Wrong(f"{declared.__name__} has no such field").under(name)
        for name in names:
            if name not in plain:
                raise _Wrong(f"{declared.__name__} needs this field").under(name)
        return declared(**{name: _under(name, turn, plain[name]) for name, _, turn in inner()})

    return there, back


def _union(members: tuple[Any, ...]) -> tuple[Turn, Turn]:
    """Members are told apart by what they look like in the document; several with fields, by the names of their classes."""
    tagged: dict[str, Any] = {member.__name__: member for member in members if _has_fields(member)}
    looks: dict[Any, Any] = {}
    for member in members:
        if len(tagged) > 1 and member in tagged.values():
            continue
        look = _look(member)
        if look in looks or (look is dict and len(tagged) > 1):
            raise TypeError(f"in the document nobody could tell apart the members of {members!r}")
        looks[look] = member

    def there(value: Any) -> Any:
        name = type(value).__name__
        if tagged.get(name) is type(value):
            plain = _turns(tagged[name])[0](value)
            return {TAG: name, **plain} if len(tagged) > 1 else plain
        for member in members:
            if not _has_fields(member) and _is_of(value, member):
                return _turns(member)[0](value)
        raise _Wrong(f"{_expected()} was expected, not {_short(value)}")

    def back(plain: Any) -> Any:
        if isinstance(plain, dict) and len(tagged) > 1:
            name = plain.get(TAG)
            if not isinstance(name, str) or name not in tagged:
                raise _Wrong(f"one of {', '.join(tagged)} was expected, not {_short(name)}").under(TAG)
            return _turns(tagged[name])[1]({each: value for each, value in plain.items() if each != TAG})
        look: Any = type(plain)
        if look is int and look not in looks:
            look = float
        if look not in looks:
            raise _Wrong(f"{_expected()} was expected, not {_short(plain)}")
        return _turns(looks[look])[1](plain)

    def _expected() -> str:
        return " or ".join(getattr(member, "__name__", str(member)) for member in members)

    return there, back


def _look(member: Any) -> type:
    """As what does it appear in the document?"""
    if member is types.NoneType:
        return type(None)
    if member in (bool, int, float, str):
        return member  # type: ignore[no-any-return]
    if member in (bytes, Path):
        return str
    if isinstance(member, type) and issubclass(member, Enum):
        (look,) = {type(each.value) for each in member}
        return look
    if _has_fields(member):
        return dict
    origin, arguments = get_origin(member), get_args(member)
    if origin is Literal:
        (look,) = {type(each) for each in arguments}
        return look
    if issubclass(origin, Mapping):
        return dict if _is_name(arguments[0]) else list
    return list


def _is_of(value: object, member: Any) -> bool:
    origin = get_origin(member)
    if origin is Literal:
        return value in get_args(member)
    if member is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if member is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, origin or member)
