"""Redis is gone, or slow: the pages say so, and the server goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import httpx2
import pytest

import forkq
from forkq import default_client
from forkq.web import create_app
from forkq.web.worker import THREADS, Worker
from tests.support.server import Server
from tests.web.shared import client_of

PAGES = ("/", "/queues", "/queue?name=mail", "/busy", "/search?q=Mail")


@pytest.fixture
def server(own_server: Server) -> Iterator[Server]:
    forkq.configure(own_server.url)
    yield own_server
    default_client.forget()


def test_each_page_says_that_redis_is_gone_and_comes_back(server: Server) -> None:
    with client_of() as web:
        server.stop()
        for path in PAGES:
            answer = web.get(path)
            assert answer.status_code == 503
            assert "Redis does not answer" in answer.text
            assert "Traceback" not in answer.text
            assert answer.headers["retry-after"]
        server.start()
        assert web.get("/queues").status_code == 200


def test_a_slow_redis_holds_up_no_other_answer(server: Server) -> None:
    """More pages wait for Redis than there are threads, and a file is served meanwhile."""

    async def scenario() -> tuple[int, int, list[int]]:
        transport = httpx2.ASGITransport(create_app(), client=("127.0.0.1", 1))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as web:
            server.pause()
            try:
                waiting = [asyncio.create_task(web.get("/queues")) for _ in range(20)]
                static = await web.get("/static/forkq.css")
                done = sum(task.done() for task in waiting)
            finally:
                server.resume()
            return static.status_code, done, [(await task).status_code for task in waiting]

    status, done, statuses = asyncio.run(scenario())
    assert status == 200
    assert done < len(statuses)  # each waits for Redis, at most until its time-out
    assert set(statuses) <= {200, 503}  # a time-out, if this machine stood still


def test_no_more_pages_are_made_at_once_than_there_are_threads() -> None:
    most, free = [0], threading.Semaphore(0)
    lock = threading.Lock()
    now = [0]

    def make() -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        free.acquire(timeout=10)
        with lock:
            now[0] -= 1

    async def scenario() -> None:
        worker = Worker()
        pages = [asyncio.create_task(worker.run(make)) for _ in range(3 * THREADS)]
        while now[0] < THREADS:
            await asyncio.sleep(0.01)
        free.release(3 * THREADS)
        await asyncio.wait_for(asyncio.gather(*pages), 20)

    asyncio.run(scenario())
    assert most[0] == THREADS
