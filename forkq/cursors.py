"""What an iterable job works through: pairs ``(item, cursor)``, from a cursor on.

``build_enumerator`` may return what these functions give, and a generator job loops over it. The
same items must come in the same order in each run.
"""

from __future__ import annotations

import csv
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from .errors import InvalidJob, a_type, shown
from .features.iterable.parts import written
from .iteration import WorkSource

if TYPE_CHECKING:
    from django.db.models import QuerySet

Item = TypeVar("Item")

# Rows of one query.
_PAGE: Final = 1000
_NULLABLE: Final = (
    "{} may be null, and such rows have no place in its order: name a key that each row has"
)


class Pairs(WorkSource, Generic[Item]):
    """Pairs of an item and its cursor. For the progress of the job: ``total`` is what the cursor is
    after the last item, ``count`` how many items there are from the beginning on; None if that is
    not known."""

    def __init__(
        self,
        pairs: Iterable[tuple[Item, Any]],
        total: int | None = None,
        *,
        count: int | None = None,
    ) -> None:
        self.total, self.count = _number("total", total), _number("count", count)
        self._pairs = iter(pairs)

    def __iter__(self) -> Iterator[tuple[Item, Any]]:
        return self._pairs


def _number(name: str, given: int | None) -> int | None:
    """Raises InvalidJob for what is no number of items."""
    if given is None or (type(given) is int and given >= 0):
        return given
    raise InvalidJob(f"{name}={shown(given)} is no number of items: pass one, or None")


def _at_least_one(name: str, given: int) -> int:
    """Raises InvalidJob for what is no number of items from 1 on: the job would skip them."""
    if type(given) is int and given > 0:
        return given
    raise InvalidJob(f"{name}={shown(given)} is no number of items: pass a whole number from 1 on")


def _columns_of(key: Any) -> list[Any]:
    """The columns of a key, which may be one. Raises InvalidJob for none."""
    found = list(key) if isinstance(key, list | tuple) else [key]
    if not found:
        raise InvalidJob("the key has no column: name one that no two rows share, or several")
    return found


def sequence(items: Sequence[Item], cursor: int | None = None) -> Pairs[Item]:
    """The items of a list. The cursor is the place of an item."""
    begin = cursor or 0
    return Pairs(((items[place], place) for place in range(begin, len(items))), len(items))


def lines(
    path: str | os.PathLike[str], cursor: int | None = None, *, encoding: str = "utf-8"
) -> Pairs[str]:
    """The lines of a file, without their ends. The cursor is the byte at which a line begins."""
    return Pairs(_lines(path, cursor or 0, encoding), Path(path).stat().st_size)


def _lines(path: str | os.PathLike[str], place: int, encoding: str) -> Iterator[tuple[str, int]]:
    with Path(path).open("rb") as file:
        file.seek(place)
        for line in file:
            yield line.decode(encoding).rstrip("\r\n"), place
            place += len(line)


def csv_rows(
    path: str | os.PathLike[str],
    cursor: int | None = None,
    *,
    encoding: str = "utf-8",
    **options: Any,
) -> Pairs[dict[str, str]]:
    """The rows of a CSV file, by the names in its first row. ``options`` are those of csv.reader.
    The cursor is the byte at which a row begins; a row may have line breaks."""
    rows = _csv_rows(path, cursor, encoding, options)
    return Pairs(rows, Path(path).stat().st_size)


def _csv_rows(
    path: str | os.PathLike[str], cursor: int | None, encoding: str, options: dict[str, Any]
) -> Iterator[tuple[dict[str, str], int]]:
    with Path(path).open("rb") as file:
        head = _Rows(file, 0, encoding, options)
        names = next(head.reader, None)
        rows = _Rows(file, cursor or head.place, encoding, options)
        place = rows.place
        for row in rows.reader if names else ():
            if row:
                yield dict(zip(names or (), row, strict=False)), place
            place = rows.place


class _Rows:
    """Reads a CSV file from a byte on. ``place``: the byte behind what was read."""

    def __init__(self, file: IO[bytes], place: int, encoding: str, options: dict[str, Any]) -> None:
        self.place = place
        file.seek(place)
        self.reader = csv.reader(self._lines(file, encoding), **options)

    def _lines(self, file: IO[bytes], encoding: str) -> Iterator[str]:
        for line in file:
            self.place += len(line)
            yield line.decode(encoding)


def django_rows(
    rows: QuerySet[Any],
    cursor: Any = None,
    *,
    key: str | Sequence[str] = "pk",
    page: int = _PAGE,
    count: int | None = None,
) -> Pairs[Any]:
    """The rows of a Django queryset in the order of ``key``, ``page`` of them in one query. ``key``
    names a field that no two rows share, or several of which no two rows share all. The cursor is
    the key of a row. ``count``, such as ``rows.count()``: how many there are, for the progress of
    the job. Raises InvalidJob for a key that may be null, or that two rows share."""
    columns = _django_key(rows, _columns_of(key))
    ordered = rows.order_by(*(column.name for column in columns))

    def read(condition: Any, most: int) -> list[Any]:
        return list((ordered if condition is None else ordered.filter(condition))[:most])

    return Pairs(_by_key(columns, read, cursor, _at_least_one("page", page)), count=count)


def _django_key(rows: QuerySet[Any], names: Sequence[str]) -> list[_KeyColumn]:
    meta = rows.model._meta
    if list(names) == ["pk"]:  # from Django 5.2 on it may be several fields
        names = [field.attname for field in getattr(meta, "pk_fields", (meta.pk,))]
    for field in meta.get_fields():
        if getattr(field, "null", False) and {field.name, getattr(field, "attname", "")} & {*names}:
            raise InvalidJob(_NULLABLE.format(f"{meta.label}.{field.name}"))
    return [_KeyColumn(name, partial(_django_condition, name)) for name in names]


def _django_condition(name: str, how: str, value: Any) -> Any:
    from django.db.models import Q  # noqa: PLC0415 - only apps with Django have it

    return Q(**{f"{name}__{'gte' if how == 'ge' else how}": value})


class Session(Protocol):
    """What ``sqlalchemy_rows`` needs of a session of SQLAlchemy."""

    def scalars(self, statement: Any, /) -> Any: ...


def sqlalchemy_rows(
    session: Session,
    statement: Any,
    key: Any,
    cursor: Any = None,
    *,
    page: int = _PAGE,
    count: int | None = None,
) -> Pairs[Any]:
    """The rows of a ``select`` of SQLAlchemy in the order of ``key``, ``page`` of them in one
    query. ``key`` is a mapped column that no two rows share, or a list of columns of which no two
    rows share all. The cursor is the key of a row. ``count``: how many there are, for the progress
    of the job. Raises InvalidJob for a cursor that is no value of the key, and for a key that may
    be null, or that two rows share."""
    keys = _columns_of(key)
    columns = [_sqlalchemy_column(one) for one in keys]
    if getattr(statement, "_limit_clause", None) is not None:
        raise InvalidJob("the select has a limit: leave it out, `page` rows are read at a time")
    ordered = statement.order_by(None).order_by(*keys)  # another order would skip rows

    def read(condition: Any, most: int) -> list[Any]:
        found = ordered if condition is None else ordered.where(condition)
        return list(session.scalars(found.limit(most)))

    return Pairs(_by_key(columns, read, cursor, _at_least_one("page", page)), count=count)


def _sqlalchemy_column(column: Any) -> _KeyColumn:
    if not isinstance(getattr(column, "key", None), str):
        raise InvalidJob(f"the key has {a_type(type(column))}: name a mapped column, as in User.id")
    if getattr(column, "nullable", False):
        raise InvalidJob(_NULLABLE.format(column))
    return _KeyColumn(
        column.key,
        lambda how, value: getattr(operator, how)(column, value),
        partial(_key_in, column),
    )


def _key_in(column: Any, cursor: Any) -> Any:
    """The key that a cursor is. In Redis a UUID, a moment, a decimal are text, and a database would
    refuse that text, or, as SQLite does, compare it with a text of another form."""
    try:
        kind = column.type.python_type
    except NotImplementedError:  # a type of the app, which says nothing of its values
        return cursor
    try:
        return msgspec.convert(cursor, kind, strict=False)
    except msgspec.ValidationError:
        raise InvalidJob(
            f"the cursor {shown(cursor)} is no key of {column}, which is {a_type(kind)}"
        ) from None


class _KeyColumn(NamedTuple):
    """A column of the key by which rows are walked. ``compare("gt", value)`` is the condition that
    it is greater, ``"ge"``: or equal. ``read`` makes a value of it of what JSON has kept."""

    name: str
    compare: Callable[[str, Any], Any]
    read: Callable[[Any], Any] = lambda value: value


def _by_key(
    columns: Sequence[_KeyColumn], read: Callable[[Any, int], list[Any]], cursor: Any, page: int
) -> Iterator[tuple[Any, Any]]:
    """The rows that ``read`` gives for a condition: from a key on, or behind it. A row more than a
    page shows whether two share the key at its end."""
    condition = None if cursor is None else _beyond(columns, _begin(columns, cursor), "ge")
    while found := read(condition, page + 1):
        keys = _keys(columns, found)
        for row, key in zip(found[:page], keys, strict=False):
            yield row, key if len(columns) > 1 else key[0]
        if len(found) <= page:
            return
        condition = _beyond(columns, keys[page - 1], "gt")


def _begin(columns: Sequence[_KeyColumn], cursor: Any) -> list[Any]:
    """The key that a cursor is. Raises InvalidJob for none."""
    parts = cursor if len(columns) > 1 and isinstance(cursor, list | tuple) else [cursor]
    if len(parts) != len(columns):
        raise InvalidJob(
            f"the cursor {shown(cursor)} has not one value for each of {_names(columns)}"
        )
    return [column.read(part) for column, part in zip(columns, parts, strict=True)]


def _beyond(columns: Sequence[_KeyColumn], at: Sequence[Any], how: str) -> Any:
    """The condition of the rows behind the key ``at`` ("gt"), or from it on ("ge")."""
    (column, *others), (value, *rest) = columns, at
    if not others:
        return column.compare(how, value)
    inside = _beyond(others, rest, how)
    return column.compare("ge", value) & (column.compare("gt", value) | inside)


def _keys(columns: Sequence[_KeyColumn], rows: Sequence[Any]) -> list[list[Any]]:
    """The keys of a page, read before the app commits: that may expire its rows. Raises InvalidJob
    if two rows share a key: at the end of a page one of them would be left out."""
    keys = [_key_of(columns, row) for row in rows]
    if shared := next((key for key, behind in pairwise(keys) if key == behind), None):
        raise InvalidJob(
            f"two rows have the key {shown(shared)} of {_names(columns)}: name a key that no two "
            "rows share, or several columns of which no two rows share all"
        )
    return keys


def _key_of(columns: Sequence[_KeyColumn], row: Any) -> list[Any]:
    try:
        return [getattr(row, column.name) for column in columns]
    except AttributeError as error:
        raise InvalidJob(
            f"{a_type(type(row))} is no row with the key {_names(columns)} ({error}): give rows as "
            "objects of their class, not columns of them"
        ) from None


def _names(columns: Sequence[_KeyColumn]) -> str:
    return ", ".join(column.name for column in columns)


def batches(pairs: Iterable[tuple[Item, Any]], size: int) -> Pairs[list[Item]]:
    """``size`` items at a time. The cursor is that of the first one of a batch."""
    _at_least_one("size", size)
    source = pairs if isinstance(pairs, WorkSource) else WorkSource()
    count = None if source.count is None else -(-source.count // size)
    return Pairs(_batches(pairs, size), source.total, count=count)


def _batches(pairs: Iterable[tuple[Item, Any]], size: int) -> Iterator[tuple[list[Item], Any]]:
    batch: list[Item] = []
    first: Any = None
    for item, cursor in pairs:
        if not batch:
            first = cursor
        batch.append(item)
        if len(batch) == size:
            yield batch, first
            batch = []
    if batch:
        yield batch, first


def nested(
    *levels: Callable[..., Iterable[tuple[Any, Any]]], cursor: Sequence[Any] | None = None
) -> Pairs[tuple[Any, ...]]:
    """The items of loops inside each other. Each level is called with the items of the levels
    around it, and the cursor of its own. An item is a tuple of the items of all levels, the cursor
    a list of their cursors."""
    return Pairs(_nested(levels, (), [], list(cursor or [])))


def _nested(
    levels: Sequence[Callable[..., Iterable[tuple[Any, Any]]]],
    items: tuple[Any, ...],
    cursors: list[Any],
    begin: list[Any],
) -> Iterator[tuple[tuple[Any, ...], list[Any]]]:
    """The items of the levels that are left, inside ``items`` of those around them. ``begin``: the
    cursors at which they begin; only the first item of each level goes on with them."""
    first = begin[0] if begin else None
    for item, cursor in levels[0](*items, first):
        inner, at = (*items, item), [*cursors, cursor]
        if len(levels) == 1:
            yield inner, at
        else:
            # Compared as JSON: in Redis a UUID is text, and a tuple a list.
            goes_on = begin and written(cursor) == written(first)
            yield from _nested(levels[1:], inner, at, begin[1:] if goes_on else [])
        begin = []
