"""What an iterable job works through: pairs ``(item, cursor)``, from a cursor on.

``build_enumerator`` may return what these functions give, and a generator job loops over it. The
same items must come in the same order in each run.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import msgspec

from .errors import InvalidJob, a_type, shown
from .features.iterable.parts import written
from .iteration import WorkSource

if TYPE_CHECKING:
    from django.db.models import QuerySet

Item = TypeVar("Item")

# Rows of one query.
_PAGE: Final = 1000


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
    key: str = "pk",
    page: int = _PAGE,
    count: int | None = None,
) -> Pairs[Any]:
    """The rows of a Django queryset in the order of ``key``, which no two rows share, ``page`` of
    them in one query. The cursor is the key of a row. ``count``, such as ``rows.count()``: how many
    there are, for the progress of the job."""
    ordered = rows.order_by(key)

    def read(where: str, at: Any) -> list[Any]:
        found = ordered if at is None else ordered.filter(**{f"{key}__{where}": at})
        return list(found[:page])

    return Pairs(_by_key(read, lambda row: getattr(row, key), cursor, page), count=count)


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
    """The rows of a ``select`` of SQLAlchemy in the order of ``key``, a mapped column that no two
    rows share, ``page`` of them in one query. The cursor is the key of a row. ``count``: how many
    there are, for the progress of the job. Raises InvalidJob for a cursor that is no value of the
    column."""
    ordered = statement.order_by(key).limit(page)
    cursor = None if cursor is None else _key_in(cursor, key)

    def read(where: str, at: Any) -> list[Any]:
        if at is None:
            return list(session.scalars(ordered))
        return list(session.scalars(ordered.where(key >= at if where == "gte" else key > at)))

    return Pairs(_by_key(read, lambda row: getattr(row, key.key), cursor, page), count=count)


def _key_in(cursor: Any, key: Any) -> Any:
    """The key that a cursor is. In Redis a UUID, a moment, a decimal are text, and a database would
    refuse that text, or, as SQLite does, compare it with a text of another form."""
    try:
        kind = key.type.python_type
    except NotImplementedError:  # a type of the app, which says nothing of its values
        return cursor
    try:
        return msgspec.convert(cursor, kind, strict=False)
    except msgspec.ValidationError:
        raise InvalidJob(
            f"the cursor {shown(cursor)} is no key of {key}, which is {a_type(kind)}"
        ) from None


def _by_key(
    read: Callable[[str, Any], list[Any]], key_of: Callable[[Any], Any], cursor: Any, page: int
) -> Iterator[tuple[Any, Any]]:
    """The rows that ``read`` gives a page at a time: from a key on, or after it."""
    found = read("gte", cursor)
    while found:
        for row in found:
            yield row, key_of(row)
        if len(found) < page:
            return
        found = read("gt", key_of(found[-1]))


def batches(pairs: Iterable[tuple[Item, Any]], size: int) -> Pairs[list[Item]]:
    """``size`` items at a time. The cursor is that of the first one of a batch."""
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
