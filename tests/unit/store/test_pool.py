"""What a pool lends: no server, no socket, and a clock that the test sets."""

from __future__ import annotations

from typing import Any

import pytest

from forkq.store import pool
from forkq.store.pool import RedisPool


class FakeConnection:
    """An open connection. The server has hung up if ``ended``, which only a look at its socket
    tells."""

    reusable = True

    def __init__(self) -> None:
        self.ended = self.closed = False

    def connect(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def stale(self, *, look: bool) -> bool:
        return look and self.ended


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, as its only element."""
    now = [100.0]
    monkeypatch.setattr(pool, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def lent() -> RedisPool:
    made: Any = RedisPool("redis://nowhere", size=2, timeout=1.0, connect_timeout=1.0)
    made._make = FakeConnection
    return made  # type: ignore[no-any-return]


def test_a_connection_that_has_just_come_back_is_lent_without_a_look(
    clock: list[float], lent: RedisPool
) -> None:
    connection: Any = lent.take()
    lent.give_back(connection)
    connection.ended = True
    clock[0] += 0.000_05
    assert lent.take() is connection


def test_a_connection_that_the_server_has_ended_is_replaced(
    clock: list[float], lent: RedisPool
) -> None:
    connection: Any = lent.take()
    lent.give_back(connection)
    connection.ended = True
    clock[0] += 0.000_2
    assert lent.take() is not connection
    assert connection.closed


def test_a_full_pool_closes_what_comes_back(clock: list[float], lent: RedisPool) -> None:
    taken: list[Any] = [lent.take() for _ in range(3)]
    for connection in taken:
        lent.give_back(connection)
    assert [connection.closed for connection in taken] == [False, False, True]
