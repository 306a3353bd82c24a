"""Jobs that use SQLAlchemy and a real PostgreSQL, in a real tree."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Engine

from tests.process.shared import push, wait_settled
from tests.support.postgres import Postgres
from tests.support.server import Server
from tests.support.tree import StartTree

APP = """
import os
import forkq
from forkq.contrib.sqlalchemy import session_per_job
from sqlalchemy import create_engine, text
from sqlalchemy.orm import scoped_session, sessionmaker

engine = create_engine(os.environ["DATABASE"])
sessions = scoped_session(sessionmaker(engine))
session_per_job(sessions)
with engine.connect() as connection:
    connection.execute(text("select 1"))  # the master has a connection in its pool

@forkq.job(name="Insert", retry=False, dead=False)
def insert(wave):
    row = {"wave": wave, "pid": os.getpid()}
    sessions.execute(text("insert into runs values (:wave, :pid, pg_backend_pid())"), row)
    sessions.commit()

@forkq.job(name="Forget", retry=False, dead=False)
def forget(wave):
    sessions.execute(text("insert into runs values (:wave, 0, 0)"), {"wave": wave})
"""
THREADS = 4  # of two children
COUNT = text("select count(*) from runs where wave = :wave")


@pytest.fixture
def engine(postgres: Postgres) -> Iterator[Engine]:
    """The test's own connections, to a database with an empty table."""
    engine = create_engine(postgres.url, pool_pre_ping=True)
    with engine.begin() as connection:
        connection.execute(text("drop table if exists runs"))
        connection.execute(text("create table runs (wave integer, pid integer, backend integer)"))
    yield engine
    engine.dispose()


def test_children_share_no_connection_and_survive_a_restart_of_the_database(
    redis: Redis, redis_server: Server, tree: StartTree, postgres: Postgres, engine: Engine
) -> None:
    """With preload, the master has connected before it forks. One restart of PostgreSQL costs at
    most one failed attempt in each thread, without ``pool_pre_ping``."""

    def run(wave: int, name: str = "Insert") -> int:
        for _ in range(20):
            push(redis_server, name, wave)
        wait_settled(redis)
        with engine.connect() as connection:
            found = connection.execute(COUNT, {"wave": wave})
            return int(found.scalar_one())

    forkq = tree(
        redis_server,
        app=APP,
        config="[forkq]\npreload = true\n",
        args=["-w", "2", "-c", str(THREADS // 2)],
        env={"DATABASE": postgres.url},
    )
    assert run(1) == 20
    with engine.connect() as connection:
        pairs = connection.execute(text("select distinct backend, pid from runs")).all()
    assert len({backend for backend, _ in pairs}) == len(pairs), "two processes, one connection"
    assert run(2, "Forget") == 0, "what a job has not committed is rolled back"
    postgres.restart()
    # A thread that had no job in the first wave meets its dead connection in a later one.
    failed = [20 - run(wave) for wave in range(3, 7)]
    assert sum(failed) <= THREADS
    assert forkq.stop() == 0
