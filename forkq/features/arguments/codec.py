"""Values of declared types as JSON has them, and back: one codec at the push and at the run.

msgspec reads and writes the types of the standard library and its own structs; paths and models of
pydantic take their own way. What JSON cannot tell apart is refused when the codec is made. What is
written is read again at once, so a push knows what its job will get.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from pathlib import PurePath
from types import NoneType
from typing import Any, Final, Literal, NamedTuple, cast
from uuid import UUID

import msgspec
from msgspec import inspect
from msgspec.structs import astuple

# Types whose values have no parts.
_LEAVES: Final = frozenset(
    (str, int, float, bool, NoneType, datetime, date, time, timedelta, UUID, Decimal, bytes)
)
# A subclass of one of these is written as what it is a kind of: a clock of tests has such times.
_TIMES: Final = (datetime, date, time)
_SETS: Final = (inspect.SetType, inspect.FrozenSetType)
_WITHOUT_ORDER: Final = (*_SETS, inspect.ListType, inspect.DictType)
# What msgspec says: the reason, what a model of pydantic adds to the path, the path.
_SAID: Final = re.compile(
    r"(?P<why>.*?)(?:\n(?P<inside>[^\n]*?))?(?: - at (?P<key>`key` in )?`\$(?P<path>.*)`)?", re.S
)
_GOT: Final = re.compile(r"Expected `(?P<expected>.*)`, got `(?P<got>.*)`")
# What msgspec says of a text that is no date: a date may be given where a datetime is expected.
_NO_TIME: Final = re.compile(r"Invalid RFC3339 encoded (?P<expected>\w+)")
# The value in what msgspec, or pydantic, says.
_VALUE: Final = re.compile(
    r"(?<=^Invalid value) .*|(?<=^Invalid enum value) .*|(?<=^Input tag) '.*'(?= found using)", re.S
)
_STEP: Final = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_NO_ORDER: Final = (
    "the values of a set are written in order, and these have none: take texts, whole numbers or "
    "an enumeration of these (`class E(str, Enum)`), or a list"
)
_MISSING: Final = object()
# What a class has that says nothing of how its values compare.
_OBJECT: Final[Any] = object
_OTHER: Final = "JSON would make another value of it"
_from_json: Final[Callable[[bytes], Any]] = msgspec.json.Decoder().decode


class Misfit(ValueError):
    """A value that does not fit its type. The text says where it is, what is expected there, and
    what it is."""


class Field(NamedTuple):
    """A value that a codec knows: its name, and its type. ``takes_rest``: as many values of that
    type as there are more."""

    name: str
    type: Any
    takes_rest: bool = False


class Codec:
    """Writes and reads a list of values with these ``fields``, of which the last ones may be
    missing. Raises TypeError for a type that JSON cannot have."""

    __slots__ = ("_encode", "_first", "_names", "_rest", "_rest_name", "_types")

    def __init__(self, fields: Sequence[Field]) -> None:
        found = [_checked(each) for each in fields]
        self._encode = msgspec.json.Encoder(enc_hook=_written, order=_order_of(found)).encode
        self._names = [each.name for each in fields if not each.takes_rest]
        self._types = [each.type for each in fields]
        shape = [(f"f{at}", one.type, None) for at, one in enumerate(fields) if not one.takes_rest]
        self._first = _decoder(msgspec.defstruct("Values", shape, array_like=True))
        rest = [each for each in fields if each.takes_rest]
        self._rest = _decoder(_list_of(rest[0].type)) if rest else None
        self._rest_name = rest[0].name if rest else ""

    def write(self, values: list[Any]) -> list[Any]:
        """The values as JSON has them. Raises Misfit for one that is not of its type, or that would
        be read as another one."""
        text = self._text(values)
        read = self._read(text, values)
        try:
            self._refuse_changed(values, read)
        except RecursionError as error:  # Python goes less deep than msgspec
            raise self._unwritable(values, error) from None
        plain: list[Any] = _from_json(text)
        return plain

    def plain(self, value: Any) -> Any:
        """A value as JSON has it, whether it fits or not."""
        return _from_json(self._encode(value))

    def read(self, values: list[Any]) -> list[Any]:
        """What the values are that JSON has. Raises Misfit."""
        return self._read(self._text(values), values)

    def _refuse_changed(self, values: list[Any], read: list[Any]) -> None:
        for at, given in enumerate(values):
            if (found := changed(given, read[at])) is not None:
                raise Misfit(f"`{self._path(at)}{found.path}`: {found.why}")

    def _text(self, values: list[Any]) -> bytes:
        try:
            return self._encode(values)
        except (TypeError, ValueError, RecursionError) as error:
            raise self._unwritable(values, error) from None

    def _read(self, text: bytes, given: list[Any]) -> list[Any]:
        count = len(self._names)
        found = self._decoded(self._first, text, given, 0)
        found = [*astuple(found)[: len(given)]]
        if self._rest is None or len(given) <= count:
            return found
        rest: list[Any] = self._decoded(self._rest, self._encode(given[count:]), given, count)
        return found + rest

    def _decoded(
        self, decoder: msgspec.json.Decoder[Any], text: bytes, given: list[Any], first: int
    ) -> Any:
        """What the text is of the values from the index ``first`` on. Raises Misfit."""
        try:
            return decoder.decode(text)
        except msgspec.ValidationError as error:
            raise self._misfit(str(error), given, first) from None
        except TypeError:  # for what cannot be in a set, msgspec says no place
            raise Misfit(
                "an array or an object is in a set, which takes texts and numbers"
            ) from None

    def _path(self, at: int) -> str:
        """The name of the value with that index."""
        if at < len(self._names) or self._rest is None:
            return self._names[at]
        return f"{self._rest_name}[{at - len(self._names)}]"

    def _expected(self, index: int, said: str) -> str:
        """What is expected as the value with that index, of which msgspec has ``said`` so: a class
        has its own name."""
        kind = self._types[min(index, len(self._types) - 1)]
        return kind.__name__ if said == "object" and isinstance(kind, type) else said

    def _misfit(self, said: str, given: list[Any], first: int) -> Misfit:
        """The error for what msgspec has ``said`` of the values from that index on."""
        match = _SAID.fullmatch(said)
        assert match is not None
        at, _, path = (match["path"] or "[0]").removeprefix("[").partition("]")
        index, path = first + int(at), path + (match["inside"] or "")
        kind = "" if match["key"] or index >= len(given) else _at(given[index], path)
        why, got = _reworded(match["why"], kind), _GOT.fullmatch(match["why"])
        if got is not None:
            expected = got["expected"] if path else self._expected(index, got["expected"])
            why = _other_type(expected, kind or got["got"])
        key = "a key of " if match["key"] else ""
        return Misfit(f"{key}`{self._path(index)}{path}`: {why}")

    def _unwritable(self, values: list[Any], error: Exception) -> Misfit:
        """The error for values of which one cannot be written."""
        if isinstance(error, RecursionError):
            return Misfit("the arguments are nested too deeply, or contain themselves")
        for at, value in enumerate(values):
            if found := self._culprit(value, self._path(at)):
                return Misfit(found)
        return Misfit(str(error))

    def _culprit(self, value: Any, path: str) -> str:
        """Where the value is that cannot be written, and of which type; "" if all can be."""
        try:
            self.plain(value)
        except (TypeError, ValueError, RecursionError) as error:
            for name, each in _parts(value):
                if found := self._culprit(each, path + name):
                    return found
            return f"`{path}`: {type(value).__name__} is no type that JSON can have ({error})"
        return ""


def _list_of(kind: Any) -> Any:
    return list[kind]


def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, dec_hook=_read)


class ChangedValue(NamedTuple):
    """Why a job would get another value than it is given, and the path of that below the value."""

    path: str
    why: str


def changed(given: Any, read: Any) -> ChangedValue | None:
    """Why a job would get another value than it is given; None if it gets the same. ``read``: what
    is read from what was written."""
    kind = type(given)
    if kind is not type(read) and not _is_same(given, read):
        return ChangedValue("", f"expected {type(read).__name__}, got {kind.__name__}")
    if kind in _LEAVES:
        return None if _is_kept(given, read) else ChangedValue("", _OTHER)
    if kind is dict:
        return _changed_in(given.items(), lambda key: read.get(key, _MISSING), "[{!r}]")
    if kind is list or kind is tuple:
        return _changed_in(enumerate(given), read.__getitem__, "[{}]")
    if kind is set or kind is frozenset:
        found, left = {*map(type, given)}, {*map(type, read)}
        return None if found == left else ChangedValue("", "JSON changes types in this set")
    return _changed_in_fields(given, read, _fields_of(cast("Hashable", kind)))


def _changed_in_fields(given: Any, read: Any, names: tuple[str, ...]) -> ChangedValue | None:
    """``changed`` of the fields of a value. One without fields is of a type that only its library
    knows: a secret of pydantic, say, of which JSON has stars."""
    for name in names:
        one, other = getattr(given, name, None), getattr(read, name, None)
        if type(one) is type(other) and type(one) in _LEAVES and one == other:
            continue  # most are: no call for each
        if (problem := changed(one, other)) is not None:
            return ChangedValue(f".{name}{problem.path}", problem.why)
    is_other = not names and type(given).__eq__ is not _OBJECT.__eq__ and given != read
    return ChangedValue("", _OTHER) if is_other else None


def _is_kept(given: Any, read: Any) -> bool:
    """Whether a value without parts is still the same one. Of a moment its text counts: in the hour
    that a clock repeats, it is equal to none in another zone."""
    return given == read or str(given) == str(read)


def _changed_in(
    parts: Iterable[tuple[Any, Any]], read: Callable[[Any], Any], step: str
) -> ChangedValue | None:
    """``changed`` of the parts of a dict or a list."""
    for name, one in parts:
        if (other := read(name)) is _MISSING:
            return ChangedValue(step.format(name), "it would be lost: JSON has no such key")
        if (problem := changed(one, other)) is not None:
            return ChangedValue(step.format(name) + problem.path, problem.why)
    return None


def _is_same(given: Any, read: Any) -> bool:
    """Whether the two count as the same though their types differ: a number without a fraction
    where one with a fraction is expected, and a kind of datetime."""
    kind = type(given)
    if kind is int:
        return type(read) is float and given == read
    return isinstance(given, _TIMES) and type(read) in _TIMES and isinstance(given, type(read))


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a value, each with the step of the path that leads there."""
    kind = type(value)
    if kind is dict:
        return ((f"[{key!r}]", each) for key, each in value.items())
    if kind is list or kind is tuple:
        return ((f"[{at}]", each) for at, each in enumerate(value))
    names = _fields_of(cast("Hashable", kind))
    return ((f".{name}", getattr(value, name)) for name in names if hasattr(value, name))


@cache
def _fields_of(kind: Any) -> tuple[str, ...]:
    """The names of the fields of a class: of a dataclass, a struct, a NamedTuple, a model."""
    for attribute in ("__dataclass_fields__", "__struct_fields__", "_fields", "model_fields"):
        found = getattr(kind, attribute, None)
        if found is not None:
            return (*found, "model_extra") if attribute == "model_fields" else tuple(found)
    return tuple(one.name for one in getattr(kind, "__attrs_attrs__", ()))


def _at(value: Any, path: str) -> str:
    """The name of the type of what is there in a value; "" if the path leads nowhere."""
    for name, index in _STEP.findall(path):
        try:
            if name:
                value = value[name] if isinstance(value, dict) else getattr(value, name)
            else:
                value = value[int(index)]
        except (AttributeError, KeyError, IndexError, TypeError, ValueError):
            return ""
    return type(value).__name__


def _other_type(expected: str, kind: str) -> str:
    """What is wrong with a value of the type ``kind``."""
    if kind == expected == "float":
        return "JSON has no such number (nan, inf)"
    return f"expected {expected}, got {kind}"


def _reworded(why: str, kind: str) -> str:
    """What msgspec says of a value of that type, without the value: it may be a secret."""
    if kind not in ("", "str") and (found := _NO_TIME.fullmatch(why)):
        return f"expected {found['expected']}, got {kind}"
    return _VALUE.sub("", why)


def _checked(field: Field) -> inspect.Type:
    """What msgspec knows of a type. Raises TypeError for one that JSON cannot have."""
    try:
        info = inspect.type_info(field.type)
    except TypeError as error:
        if "Type unions" in str(error):
            raise TypeError(
                f"JSON cannot tell the types of this union apart ({error}); take a type that says "
                "which one it is: structs of msgspec with `tag=True`, or a model of pydantic"
            ) from None
        raise
    for one in _nodes_of([info]):
        if isinstance(one, inspect.CustomType) and not _is_known(one.cls):
            raise TypeError(f"{one.cls.__name__} is no type that JSON can have")
        if isinstance(one, inspect.DataclassType) and hasattr(one.cls, "__pydantic_validator__"):
            raise TypeError(
                f"{one.cls.__name__} is a dataclass of pydantic, whose checks would not run: "
                "make it a BaseModel, or a dataclass of the standard library"
            )
    return info


def _is_known(kind: Any) -> bool:
    is_class = isinstance(kind, type)
    return is_class and (issubclass(kind, PurePath) or hasattr(kind, "model_validate_json"))


def _order_of(infos: Sequence[inspect.Type]) -> Literal["deterministic"] | None:
    """How values of these types are ordered. A set has no order: each process would write it in
    another way. Raises TypeError for a set whose values have no order, and for one beside keys that
    msgspec does not order."""
    sets = [one for one in _nodes_of(infos) if isinstance(one, _SETS)]
    if not sets:
        return None
    if not all(_has_order(one.item_type) for one in sets):
        raise TypeError(_NO_ORDER)
    if any(map(_has_other_keys, _nodes_of(infos))):
        raise TypeError("a set is beside a dict whose keys are no text: make them text")
    return "deterministic"


def _has_order(info: Any) -> bool:
    """Whether two values of a type can be compared, as far as the type tells."""
    if isinstance(info, inspect.UnionType):
        return {type(one) for one in info.types} <= {inspect.IntType, inspect.FloatType}
    if isinstance(info, inspect.TupleType):
        return all(map(_has_order, info.item_types))
    if isinstance(info, inspect.LiteralType):
        return len({type(one) for one in info.values}) == 1
    kind = getattr(info, "cls", int)
    return not isinstance(info, _WITHOUT_ORDER) and kind.__lt__ is not _OBJECT.__lt__


def _has_other_keys(info: inspect.Type) -> bool:
    return isinstance(info, inspect.DictType) and not isinstance(
        info.key_type, inspect.StrType | inspect.AnyType
    )


def _nodes_of(infos: Iterable[inspect.Type]) -> Iterator[inspect.Type]:
    """Finds all types in these types, and these themselves, each once."""
    waiting: list[Any] = [*infos]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if isinstance(one, tuple):
            waiting += one
        elif isinstance(one, inspect.Type | inspect.Field) and id(one) not in seen:
            seen.add(id(one))
            if isinstance(one, inspect.Type):
                yield one
            waiting += [getattr(one, name) for name in one.__struct_fields__]


def _written(value: Any) -> Any:
    """What JSON has in the place of a value that msgspec does not know."""
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, _TIMES):
        return value.isoformat()
    if hasattr(value, "model_dump"):
        plain = value.model_dump(mode="json", by_alias=True)
        return _in_order(plain, value.model_dump(by_alias=True))
    raise TypeError("pass a value of the type that the job declares")


def _in_order(plain: Any, value: Any) -> Any:
    """What a model of pydantic has written, with the arrays of its sets in order: it writes them as
    this process has them, and unique jobs are compared by the text."""
    if isinstance(plain, dict) and isinstance(value, dict):
        return {key: _in_order(each, value.get(key)) for key, each in plain.items()}
    if not isinstance(plain, list):
        return plain
    if isinstance(value, set | frozenset):
        return sorted(plain, key=msgspec.json.encode)
    if isinstance(value, list | tuple) and len(value) == len(plain):
        return [*map(_in_order, plain, value)]
    return plain


def _read(kind: Any, found: Any) -> Any:
    """The value that was written by ``_written``. Raises ValueError."""
    if issubclass(kind, PurePath):
        if type(found) is not str:
            raise ValueError(f"Expected `path`, got `{type(found).__name__}`")
        return kind(found)
    try:
        return kind.model_validate_json(msgspec.json.encode(found))
    except ValueError as error:
        raise ValueError(_reason(error)) from None


def _reason(error: Any) -> str:
    """The first thing that a model of pydantic has to say, and where, for ``_SAID``."""
    first = error.errors(include_input=False, include_url=False)[0]
    steps = (f"[{one}]" if isinstance(one, int) else f".{one}" for one in first["loc"])
    return f"{first['msg']}\n{''.join(steps)}"
