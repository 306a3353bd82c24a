"""The FastAPI example, with a real PostgreSQL; and the dependency that a test replaces."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from redis import Redis
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse

import forkq
from forkq import default_client, testing
from forkq.contrib.fastapi import lifespan
from tests.support.postgres import Postgres
from tests.support.server import Server
from tests.support.tree import CHECKOUT, StartTree
from tests.support.waiting import wait_until

EXAMPLE = CHECKOUT / "examples" / "fastapi"


@forkq.job(name="contrib.fastapi.Mail")
def mail(number: int) -> None:
    """Never run here."""


@pytest.fixture
def example(
    monkeypatch: pytest.MonkeyPatch, postgres: Postgres, redis_server: Server
) -> Iterator[TestClient]:
    """The web app of the example, in this process."""
    monkeypatch.setenv("DATABASE_URL", postgres.url)
    default_client._default = forkq.Client(redis_server.url)
    from examples.fastapi.shop import database, web  # noqa: PLC0415 - reads DATABASE_URL

    with TestClient(web.app, raise_server_exceptions=False) as client:
        yield client
    database.engine.dispose()
    default_client.forget()


@pytest.mark.usefixtures("clean_process")
def test_the_example_ships_what_was_committed(
    example: TestClient, redis: Redis, redis_server: Server, postgres: Postgres, tree: StartTree
) -> None:
    """An order that is rolled back has no job; a committed one has a job that finds its row."""
    assert example.post("/orders/0").status_code == 422
    assert not redis.exists("queue:orders")
    number = example.post("/orders/3").json()["id"]
    found: Any = redis.lindex("queue:orders", 0)
    assert example.get(f"/orders/{number}").json()["jid"].encode() in found
    assert len(example.post(f"/orders/{number}/reminder").json()["jid"]) == 24
    addresses = {"DATABASE_URL": postgres.url, "REDIS_URL": redis_server.url}
    env = {**addresses, "PYTHONPATH": str(EXAMPLE)}
    forkq_tree = tree(env=env, config=(EXAMPLE / "forkq.toml").read_text())

    def shipped() -> bool:
        return bool(example.get(f"/orders/{number}").json()["status"] == "shipped")

    wait_until(shipped, what="the shipment")
    assert forkq_tree.stop() == 0


def test_a_test_records_what_a_handler_pushes() -> None:
    app = FastAPI(lifespan=lifespan)

    @app.post("/")
    async def handler() -> str:
        return await mail.aperform_async(7)

    with testing.fake() as jobs, TestClient(app) as client:
        assert client.post("/").json() == jobs[0].jid
    assert [job.args for job in jobs] == [[7]]


@asynccontextmanager
async def own_life(app: Any) -> AsyncIterator[dict[str, list[str]]]:
    """A lifespan of the app, with that of forkq inside of it: docs/fastapi.md."""
    lived.append("begin")
    async with lifespan(app):
        yield {"seen": lived}
    lived.append("end")


lived: list[str] = []


@pytest.mark.parametrize("life", [lifespan, own_life])
@pytest.mark.parametrize("kind", [FastAPI, Starlette])
def test_the_end_of_an_app_awaits_the_pushes_under_way(
    pushes_here: Redis, kind: Any, life: Any
) -> None:
    """A handler has begun them and has answered. The app's connection ends with it."""
    tasks: set[asyncio.Task[str]] = set()
    lived.clear()
    before = len(pushes_here.client_list())

    async def handler(_request: Request) -> PlainTextResponse:
        await mail.aperform_async(0)
        tasks.update(asyncio.create_task(mail.aperform_async(number)) for number in range(1, 100))
        return PlainTextResponse(str(len(pushes_here.client_list()) - before))

    app = kind(lifespan=life)
    app.add_route("/", handler)
    for _ in range(2):  # an app may be started again
        with TestClient(app) as client:
            assert client.get("/").text == "1"
        wait_until(lambda: len(pushes_here.client_list()) == before, what="the end of it")
    assert pushes_here.llen("queue:default") == 200
    assert all(task.done() and task.exception() is None for task in tasks)
    assert lived == (["begin", "end"] * 2 if life is own_life else [])


@pytest.mark.parametrize("kind", [FastAPI, Starlette])
def test_a_wrong_configuration_ends_the_start_of_the_app(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    default_client.forget()
    monkeypatch.setenv("FORKQ_REDIS", "http://nowhere")
    with pytest.raises(forkq.ForkqError, match="FORKQ_REDIS"), TestClient(kind(lifespan=lifespan)):
        pass
    assert os.environ["FORKQ_REDIS"]
