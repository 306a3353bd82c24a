"""What an iterable job works through: from each of its cursors on just the rest comes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from forkq import cursors

CSV = 'name,text\nann,"two\nlines"\nbob,é\n\nzoe,last\n'


def rests(make: Callable[[Any], Iterable[tuple[Any, Any]]]) -> list[tuple[Any, Any]]:
    """All pairs; each of their cursors is tried as a beginning."""
    whole = list(make(None))
    for place, (_, cursor) in enumerate(whole):
        assert list(make(cursor)) == whole[place:]
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


def test_loops_inside_each_other_go_on_inside() -> None:
    def numbers(letter: str, at: Any) -> Any:
        return cursors.sequence([f"{letter}{number}" for number in range(3)], at)

    def make(at: Any) -> Any:
        return cursors.nested(lambda at: cursors.sequence("ab", at), numbers, cursor=at)

    found = rests(make)
    assert [items[1] for items, _ in found] == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert found[4] == (("b", "b1"), [1, 1])


def test_the_inner_loop_begins_anew_if_its_outer_item_is_gone() -> None:
    def outer(at: Any) -> Any:
        return [(item, item) for item in ("b", "c") if at is None or item >= at]

    def inner(letter: str, at: Any) -> Any:
        return cursors.sequence([letter, letter], at)

    pairs = cursors.nested(outer, inner, cursor=["a", 1])
    assert [at for _, at in pairs] == [["b", 0], ["b", 1], ["c", 0], ["c", 1]]


def test_the_rows_of_a_select_by_their_key() -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    orm = pytest.importorskip("sqlalchemy.orm")
    base = orm.declarative_base()

    class Row(base):  # type: ignore[misc, valid-type]
        __tablename__ = "rows"
        number = sqlalchemy.Column(sqlalchemy.Integer, primary_key=True)

    engine = sqlalchemy.create_engine("sqlite://")
    base.metadata.create_all(engine)
    with orm.Session(engine) as session:
        session.add_all(Row(number=number) for number in (5, 1, 9, 7, 3))
        session.flush()

        def make(at: Any) -> Any:
            rows = cursors.sqlalchemy_rows(session, sqlalchemy.select(Row), Row.number, at, page=2)
            return [(row.number, cursor) for row, cursor in rows]

        assert [number for number, _ in rests(make)] == [1, 3, 5, 7, 9]
    engine.dispose()
