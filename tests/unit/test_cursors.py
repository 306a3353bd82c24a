"""What an iterable job works through: from each of its cursors on just the rest comes."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forkq import cursors
from forkq.errors import InvalidJob
from forkq.features.iterable.parts import written

CSV = 'name,text\nann,"two\nlines"\nbob,é\n\nzoe,last\n'


def rests(make: Callable[[Any], Iterable[tuple[Any, Any]]]) -> list[tuple[Any, Any]]:
    """All pairs; each of their cursors is tried as a beginning, as it is and as Redis has it."""
    whole = list(make(None))
    for place, (_, cursor) in enumerate(whole):
        assert list(make(cursor)) == whole[place:]
        assert list(make(msgspec.json.decode(written(cursor)))) == whole[place:]
    return whole


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text(CSV, encoding="utf-8")
    return path


def test_a_list_by_its_places() -> None:
    assert rests(lambda at: cursors.sequence("abc", at)) == [("a", 0), ("b", 1), ("c", 2)]
    assert cursors.sequence("abc").total == 3
    assert list(cursors.sequence("", None)) == []


def test_the_lines_of_a_file_by_their_bytes(file: Path) -> None:
    found = rests(lambda at: cursors.lines(file, at))
    assert [line for line, _ in found] == CSV.splitlines()
    assert cursors.lines(file).total == len(CSV.encode())


def test_the_rows_of_a_csv_file_though_one_has_two_lines(file: Path) -> None:
    found = rests(lambda at: cursors.csv_rows(file, at))
    rows = [{"name": "ann", "text": "two\nlines"}, {"name": "bob", "text": "é"}]
    assert [row for row, _ in found] == [*rows, {"name": "zoe", "text": "last"}]


def test_an_empty_csv_file_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert list(cursors.csv_rows(tmp_path / "empty")) == []
    (tmp_path / "head").write_text("name\n")
    assert list(cursors.csv_rows(tmp_path / "head")) == []


def test_batches_begin_with_their_cursor() -> None:
    found = rests(lambda at: cursors.batches(cursors.sequence("abcde", at), 2))
    assert found == [(["a", "b"], 0), (["c", "d"], 2), (["e"], 4)]
    assert cursors.batches(cursors.sequence("abcde"), 2).total == 5
    with pytest.raises(InvalidJob, match="size=0 is no number of items: pass a whole number"):
        cursors.batches(cursors.sequence("abcde"), 0)


def test_loops_inside_each_other_go_on_inside() -> None:
    def numbers(letter: str, at: Any) -> Any:
        return cursors.sequence([f"{letter}{number}" for number in range(3)], at)

    def make(at: Any) -> Any:
        return cursors.nested(lambda at: cursors.sequence("ab", at), numbers, cursor=at)

    found = rests(make)
    assert [items[1] for items, _ in found] == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert found[4] == (("b", "b1"), [1, 1])


def test_an_outer_cursor_that_json_changes_is_known_again() -> None:
    names = sorted(uuid.UUID(int=number) for number in range(3))

    def outer(at: Any) -> Any:
        return [(name, name) for name in names if at is None or str(name) >= str(at)]

    def make(at: Any) -> Any:
        return cursors.nested(outer, lambda name, at: cursors.sequence("ab", at), cursor=at)

    assert [items for items, _ in rests(make)] == [(name, each) for name in names for each in "ab"]


def test_the_inner_loop_begins_anew_if_its_outer_item_is_gone() -> None:
    def outer(at: Any) -> Any:
        return [(item, item) for item in ("b", "c") if at is None or item >= at]

    def inner(letter: str, at: Any) -> Any:
        return cursors.sequence([letter, letter], at)

    pairs = cursors.nested(outer, inner, cursor=["a", 1])
    assert [at for _, at in pairs] == [["b", 0], ["b", 1], ["c", 0], ["c", 1]]


KEYS: dict[str, list[Any]] = {
    "Integer": [5, 1, 9, 7, 3],
    "String": ["b", "a", "d"],
    "Uuid": [uuid.UUID(int=number) for number in (5, 1, 9)],
    "DateTime": [datetime.datetime(2026, 1, day, 12) for day in (5, 1, 9)],
    "Date": [datetime.date(2026, 1, day) for day in (5, 1, 9)],
    "Numeric": [Decimal(5), Decimal(1), Decimal(9)],
    "LargeBinary": [b"b", b"a", b"d"],
}


def rows_by_key(session: Any, kind: Any, values: Iterable[Any]) -> Callable[[Any], Any]:
    """Makes a table with these keys. Returns what gives its rows from a cursor on."""
    sqlalchemy = pytest.importorskip("sqlalchemy")
    base = pytest.importorskip("sqlalchemy.orm").declarative_base()

    class Row(base):  # type: ignore[misc, valid-type]
        __tablename__ = "rows"
        key = sqlalchemy.Column(kind, primary_key=True)

    base.metadata.create_all(session.connection())
    session.add_all(Row(key=value) for value in values)
    session.flush()

    def make(at: Any) -> Any:
        rows = cursors.sqlalchemy_rows(session, sqlalchemy.select(Row), Row.key, at, page=2)
        return [(row.key, cursor) for row, cursor in rows]

    return make


@pytest.fixture
def session() -> Any:
    engine = pytest.importorskip("sqlalchemy").create_engine("sqlite://")
    with pytest.importorskip("sqlalchemy.orm").Session(engine) as session:
        yield session
    engine.dispose()


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.filterwarnings("ignore:Dialect sqlite:sqlalchemy.exc.SAWarning")
def test_the_rows_of_a_select_by_their_key(session: Any, kind: str) -> None:
    make = rows_by_key(session, getattr(pytest.importorskip("sqlalchemy"), kind), KEYS[kind])
    assert [key for key, _ in rests(make)] == sorted(KEYS[kind])


def test_a_key_of_a_type_of_the_app_is_taken_as_it_comes(session: Any) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")

    class Padded(sqlalchemy.types.UserDefinedType):  # type: ignore[misc, name-defined]
        cache_ok = True

        def get_col_spec(self, **_: Any) -> str:
            return "TEXT"

    assert [key for key, _ in rests(rows_by_key(session, Padded, ["b", "a", "d"]))] == list("abd")


def test_a_cursor_that_is_no_key_is_an_error_that_names_both(session: Any) -> None:
    make = rows_by_key(session, pytest.importorskip("sqlalchemy").Uuid, [uuid.UUID(int=1)])
    with pytest.raises(InvalidJob, match=r"'seven' is no key of Row\.key, which is a UUID"):
        make("seven")
