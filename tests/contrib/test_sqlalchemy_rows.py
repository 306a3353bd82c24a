"""The rows of a select of SQLAlchemy, walked by an iterable job, on SQLite and on PostgreSQL."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from forkq import cursors
from forkq.errors import InvalidJob
from forkq.features.iterable.parts import written
from tests.support.postgres import Postgres


class Base(DeclarativeBase): ...


class Line(Base):
    __tablename__ = "lines"

    order: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime.datetime] = mapped_column(unique=True)
    text: Mapped[str | None]


BOTH: list[Any] = [Line.order, Line.number]


def line(order: int, number: int) -> Line:
    at = datetime.datetime(2026, 1, 9 - number, order)
    return Line(order=uuid.UUID(int=order), number=number, at=at, text="a")


@pytest.fixture(params=["sqlite", "postgres"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    """A session of a database with five lines of two orders."""
    url = "sqlite://"
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        url = server.url
    engine = create_engine(url)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all([line(2, 1), line(1, 2), line(1, 1), line(2, 2), line(1, 3)])
        session.commit()
        yield session
    engine.dispose()


def rests(make: Callable[[Any], Any]) -> list[tuple[int, int]]:
    """All rows; each of their cursors, as Redis has it, gives just the rest."""
    whole = [(name(row), cursor) for row, cursor in make(None)]
    for place, (_, cursor) in enumerate(whole):
        rest = make(msgspec.json.decode(written(cursor)))
        assert [name(row) for row, _ in rest] == [row for row, _ in whole[place:]]
    return [row for row, _ in whole]


def name(row: Line) -> tuple[int, int]:
    return row.order.int, row.number


def test_rows_are_walked_by_their_keys(session: Session) -> None:
    """In one test: a server of PostgreSQL serves all of it."""
    rows = select(Line).order_by(Line.text, Line.at)  # the key decides
    for page in (1, 2, 5):

        def walk(at: Any, key: Any = BOTH, page: int = page) -> Any:
            return cursors.sqlalchemy_rows(session, rows, key, at, page=page)

        assert rests(walk) == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]
        by_time = rests(lambda at: walk(at, Line.at))
        assert by_time == [(1, 3), (1, 2), (2, 2), (1, 1), (2, 1)]
        with pytest.raises(InvalidJob, match=r"two rows have the key \[UUID.* of order: name a"):
            list(walk(None, Line.order))
    _walks_while_rows_come_and_go(session)


def _walks_while_rows_come_and_go(session: Session) -> None:
    """The session expires its rows at each commit, as it does unless it is told not to."""
    seen = []
    for row, _ in cursors.sqlalchemy_rows(session, select(Line), BOTH, page=2):
        seen.append(name(row))
        session.delete(row)  # also the last row of each page, behind which the next one begins
        if len(seen) == 2:
            session.add_all([line(0, 7), line(1, 8)])
        session.commit()
    assert seen == [(1, 1), (1, 2), (1, 3), (1, 8), (2, 1), (2, 2)]


def test_what_cannot_be_walked_is_refused() -> None:
    odd: Any = object()
    with pytest.raises(InvalidJob, match=r"Line\.text may be null.*that each row has"):
        cursors.sqlalchemy_rows(odd, select(Line), Line.text)
    with pytest.raises(InvalidJob, match="the select has a limit: leave it out"):
        cursors.sqlalchemy_rows(odd, select(Line).limit(5), Line.at)
    with pytest.raises(InvalidJob, match="the key has no column: name one"):
        cursors.sqlalchemy_rows(odd, select(Line), [])
    for key, kind in (("at", "a str"), (Line.at.desc(), "a UnaryExpression")):
        with pytest.raises(InvalidJob, match=f"the key has {kind}: name a mapped column"):
            cursors.sqlalchemy_rows(odd, select(Line), key)
    for page in (0, -1, True):
        with pytest.raises(InvalidJob, match=f"page={page} is no number of items"):
            cursors.sqlalchemy_rows(odd, select(Line), Line.at, page=page)
    with pytest.raises(InvalidJob, match="has not one value for each of order, number"):
        list(cursors.sqlalchemy_rows(odd, select(Line), BOTH, ["x"]))
    with pytest.raises(InvalidJob, match=r"'x' is no key of Line\.order, which is a UUID"):
        list(cursors.sqlalchemy_rows(odd, select(Line), BOTH, ["x", 1]))


def test_columns_are_no_rows() -> None:
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(line(1, 1))
        session.flush()
        with pytest.raises(InvalidJob, match="a str is no row with the key at"):
            list(cursors.sqlalchemy_rows(session, select(Line.text), Line.at))
    engine.dispose()
