"""Pushes from asyncio: the loop goes on, whatever Redis does."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator

import pytest
from redis import Redis

import forkq
from forkq import default_client
from forkq.contrib import awaitable
from forkq.contrib.starlette import lifespan, push
from forkq.store.threads import CallThreads
from tests.redis.proxy import Proxy
from tests.support.server import Server


@forkq.job(name="contrib.Mail", queue="mail")
def mail(number: int) -> None:
    """Never run here."""


@pytest.fixture
def server(own_server: Server) -> Iterator[Server]:
    """The server that jobs are pushed to, which fails fast."""
    default_client._default = forkq.Client(own_server.url, timeout=2, connect_timeout=2)
    yield own_server
    default_client.forget()


async def ticks(count: list[int]) -> None:
    """A coroutine that runs as long as the loop does."""
    while True:
        count[0] += 1
        await asyncio.sleep(0.01)


def queued(server: Server) -> int:
    return int(server.client().llen("queue:mail"))


def test_a_push_is_awaited_and_returns_its_jid(server: Server) -> None:
    async def main() -> str:
        async with lifespan():
            return await push(mail.perform_async, 7)

    assert len(asyncio.run(main())) == 24
    assert queued(server) == 1
    server.close_clients()


def test_wrong_arguments_are_refused_as_ever(server: Server) -> None:
    async def main() -> None:
        async with lifespan():
            await push(mail.perform_async)  # type: ignore[call-arg]

    with pytest.raises(forkq.InvalidJob, match="missing a required argument"):
        asyncio.run(main())


def test_a_redis_that_hangs_does_not_hang_the_loop(server: Server) -> None:
    """Each push fails with forkq's own error after its time-out, and meanwhile the loop ticks."""

    async def main() -> tuple[list[object], int]:
        count = [0]
        async with lifespan():
            await push(mail.perform_async, 0)
            ticking = asyncio.create_task(ticks(count))
            server.pause()
            try:
                pushes = (push(mail.perform_async, number) for number in range(3))
                found = await asyncio.gather(*pushes, return_exceptions=True)
            finally:
                server.resume()
            ticking.cancel()
        return list(found), count[0]

    errors, ticked = asyncio.run(main())
    assert [type(each) for each in errors] == [forkq.ServerUnavailable] * 3
    # Of the push that had the open connection; the others were still opening theirs.
    assert sum("is not known" in str(each) for each in errors) >= 1
    assert ticked >= 5


def test_a_push_that_no_thread_takes_is_not_pushed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = CallThreads(1, patience=0.1, name="forkq push", busy="no thread was free")
    monkeypatch.setattr(awaitable, "_threads", one)

    async def main() -> BaseException | str:
        async with lifespan():
            await push(mail.perform_async, 0)
            server.pause()
            try:
                two = [push(mail.perform_async, 1), push(mail.perform_async, 2)]
                _, second = await asyncio.gather(*two, return_exceptions=True)
            finally:
                server.resume()
        return second

    assert "no thread was free" in str(asyncio.run(main()))


def test_a_cancelled_push_leaves_no_reply_half_read(server: Server) -> None:
    """Its thread reads the reply. The next push on that connection gets its own."""

    async def main(proxy: Proxy) -> list[str]:
        async with lifespan():
            await push(mail.perform_async, 0)
            proxy.cut_off()
            task = asyncio.create_task(push(mail.perform_async, 1))
            done, _ = await asyncio.wait({task}, timeout=0.05)
            assert not done
            task.cancel()
            assert isinstance(
                (await asyncio.gather(task, return_exceptions=True))[0], BaseException
            )
            proxy.restore()
            return [await push(mail.perform_async, number) for number in range(2, 6)]

    with Proxy(server.port) as proxy:
        default_client._default = forkq.Client(proxy.url, timeout=5)
        jids = asyncio.run(main(proxy))
    payloads = map(json.loads, server.client().lrange("queue:mail", 0, -1))
    sent = {payload["jid"]: payload["args"] for payload in payloads}  # the first may come late
    assert [sent[jid] for jid in jids] == [[2], [3], [4], [5]]
    server.close_clients()


@pytest.mark.filterwarnings(
    "ignore:.*fork:DeprecationWarning"
)  # the parent has threads, on purpose
def test_a_forked_process_pushes_with_threads_of_its_own(server: Server, redis: Redis) -> None:
    async def one() -> None:
        await push(mail.perform_async, 1)

    asyncio.run(one())
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            asyncio.run(asyncio.wait_for(one(), 60))
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    asyncio.run(awaitable.close())
    assert queued(server) == 2
    server.close_clients()
