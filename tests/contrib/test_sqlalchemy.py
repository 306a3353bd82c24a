"""Pushes that wait for a commit, and sessions that end with their job. SQLite is enough for these;
test_postgres.py has what needs a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from redis import Redis
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import StaticPool

import forkq
from forkq import default_client, middleware, testing
from forkq.config.shards import Shard
from forkq.contrib.sqlalchemy import push_after_commit, session_per_job
from forkq.errors import ServerUnavailable
from forkq.sharded_client import ShardedClient


@forkq.job(name="contrib.Ship", queue="ship")
def ship(number: int, notes: list[str] | None = None) -> None:
    """Never run here."""


class AsyncSession:
    """Stands for SQLAlchemy's, which needs a library (greenlet) that the tests do not."""


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    with engine.begin() as connection:
        connection.execute(text("create table orders (id integer)"))
    yield engine
    engine.dispose()


@pytest.fixture
def session(engine: Engine, pushes_here: Redis) -> Iterator[Session]:
    with Session(engine) as session:
        yield session


def insert(session: Any, number: int = 1) -> None:
    session.execute(text(f"insert into orders values ({number})"))  # noqa: S608


def pushed(redis: Redis) -> list[int]:
    """The first argument of each job in the queue, in the order of the pushes."""
    payloads: Any = redis.lrange("queue:ship", 0, -1)
    return [json.loads(each)["args"][0] for each in payloads[::-1]]


def test_a_push_leaves_with_the_commit(session: Session, redis: Redis) -> None:
    insert(session)
    jid = push_after_commit(session, ship.perform_async, 1)
    assert pushed(redis) == []
    session.commit()
    assert pushed(redis) == [1]
    found: Any = redis.lindex("queue:ship", 0)
    assert json.loads(found)["jid"] == jid
    insert(session)
    session.commit()
    assert pushed(redis) == [1], "each push leaves once"


def test_a_shard_that_is_down_keeps_no_other_one_from_its_pushes(engine: Engine) -> None:
    called: list[int] = []

    def push(number: int, error: Exception | None = None) -> None:
        called.append(number)
        if error is not None:
            raise error

    shards = [Shard("default", "redis://a"), Shard("b", "redis://b", ("b",))]
    before = default_client.swap(ShardedClient(shards, "default", "redis://a"))
    try:
        with Session(engine) as session:
            push_after_commit(session, push, 1, ServerUnavailable("b is down"))
            push_after_commit(session, push, 2, ServerUnavailable("b is still down"))
            push_after_commit(session, push, 3)
            push_after_commit(session, push, 4, ValueError("it is no push"))
            push_after_commit(session, push, 5)
            with pytest.raises(ValueError, match="it is no push"):
                session.commit()
            assert called == [1, 2, 3, 4]
            push_after_commit(session, push, 6, ServerUnavailable("b is down"))
            push_after_commit(session, push, 7)
            with pytest.raises(ServerUnavailable, match="b is down"):
                session.commit()
    finally:
        default_client.swap(before)
    assert called == [1, 2, 3, 4, 6, 7]


def test_a_rollback_drops_the_push(session: Session, redis: Redis) -> None:
    insert(session)
    push_after_commit(session, ship.perform_async, 1)
    session.rollback()
    push_after_commit(session, ship.perform_async, 2)
    session.commit()
    assert pushed(redis) == [2]


def test_a_closed_session_drops_the_push(session: Session, redis: Redis) -> None:
    push_after_commit(session, ship.perform_async, 1)
    session.close()
    insert(session)
    session.commit()
    assert pushed(redis) == []


def test_a_flush_that_fails_drops_the_push(session: Session, redis: Redis) -> None:
    push_after_commit(session, ship.perform_async, 1)
    with pytest.raises(Exception, match="no such table"):
        session.execute(text("insert into nowhere values (1)"))
    session.rollback()
    session.commit()
    assert pushed(redis) == []


def test_savepoints(session: Session, redis: Redis) -> None:
    """A push goes with its savepoint, and waits for the outermost commit."""
    push_after_commit(session, ship.perform_async, 1)
    with session.begin_nested():
        push_after_commit(session, ship.perform_async, 2)
        inner = session.begin_nested()
        push_after_commit(session, ship.perform_async, 3)
        inner.rollback()
        with session.begin_nested():
            push_after_commit(session, ship.perform_async, 4)
    assert pushed(redis) == []
    outer = session.begin_nested()
    with session.begin_nested():
        push_after_commit(session, ship.perform_async, 5)
    outer.rollback()
    session.commit()
    assert pushed(redis) == [1, 2, 4]


def test_a_block_of_begin(engine: Engine, pushes_here: Redis) -> None:
    sessions = sessionmaker(engine)
    with sessions.begin() as session:
        insert(session)
        push_after_commit(session, ship.perform_async, 1)
    with suppress(ZeroDivisionError), sessions.begin() as session:
        push_after_commit(session, ship.perform_async, 2)
        raise ZeroDivisionError
    assert pushed(pushes_here) == [1]


def test_a_later_change_of_the_arguments_changes_nothing(session: Session, redis: Redis) -> None:
    notes = ["fragile"]
    push_after_commit(session, ship.perform_async, 1, notes)
    notes.append("late")
    session.commit()
    found: Any = redis.lindex("queue:ship", 0)
    assert json.loads(found)["args"] == [1, ["fragile"]]


def test_wrong_arguments_are_refused_before_the_commit(session: Session, redis: Redis) -> None:
    for arguments in ((), (1, object()), (1, ["x" * (17 << 20)])):
        with pytest.raises(forkq.InvalidJob):
            push_after_commit(session, ship.perform_async, *arguments)
    with pytest.raises(forkq.InvalidJob):
        push_after_commit(session, ship.perform_in, None, 1)  # type: ignore[arg-type]
    with pytest.raises(forkq.InvalidJob, match=r"not AsyncSession.*after `await session.commit"):
        push_after_commit(AsyncSession(), ship.perform_async, 1)  # type: ignore[arg-type]
    session.commit()
    assert pushed(redis) == []


def test_scheduled_and_other_calls_wait_too(session: Session, redis: Redis) -> None:
    jid = push_after_commit(session, ship.perform_in, 3600, 1)
    calls: list[int] = []
    assert push_after_commit(session, calls.append, 7) == ""
    assert not calls
    session.commit()
    assert calls == [7]
    scheduled: Any = redis.zrange("schedule", 0, -1)
    assert [json.loads(each)["jid"] for each in scheduled] == [jid]


def test_a_push_that_fails_is_raised_by_the_commit_whose_rows_stand(
    session: Session, engine: Engine
) -> None:
    def fail() -> None:
        raise forkq.ServerUnavailable("away")

    insert(session)
    push_after_commit(session, fail)
    with pytest.raises(forkq.ServerUnavailable):
        session.commit()
    assert session.scalar(text("select count(*) from orders")) == 1


@pytest.mark.usefixtures("clean_process")
def test_a_job_leaves_no_session_behind(engine: Engine) -> None:
    """What a job has not committed is rolled back, whether it fails or not."""
    sessions = scoped_session(sessionmaker(engine))
    session_per_job(sessions)
    seen = []

    def job() -> None:
        seen.append(sessions())
        insert(sessions)
        if len(seen) == 2:
            raise ZeroDivisionError

    middleware.server.run({}, job)
    assert not sessions.registry.has()
    with pytest.raises(ZeroDivisionError):
        middleware.server.run({}, job)
    assert not sessions.registry.has()
    assert seen[0] is not seen[1]
    assert sessions.scalar(text("select count(*) from orders")) == 0
    sessions.remove()


@pytest.mark.usefixtures("clean_process")
def test_hooks_and_handlers_leave_no_session_either(engine: Engine) -> None:
    sessions = scoped_session(sessionmaker(engine))
    session_per_job(sessions)

    def give_delay(count: int, error: BaseException, job: dict[str, Any]) -> int:
        insert(sessions)
        return 7

    def died(job: dict[str, Any], error: BaseException) -> None:
        left.append(sessions.registry.has())
        insert(sessions)

    left: list[bool] = []
    failing = forkq.job(name="contrib.Hooked", retry=1, retry_in=give_delay)(lambda: 1 / 0)
    forkq.on_death(died)
    with testing.fake() as jobs:
        failing.perform_async()
        jobs.perform_one()
        assert not sessions.registry.has()
        jobs.drain(check=False)
    assert left == [False]
    assert not sessions.registry.has()


def test_sessions_without_an_engine_are_refused() -> None:
    with pytest.raises(forkq.ForkqError, match="give it"):
        session_per_job(scoped_session(sessionmaker()))
