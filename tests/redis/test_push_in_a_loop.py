"""An event loop can carry a push out: its steps do no I/O (store/push_steps.py)."""

from __future__ import annotations

import asyncio

import hiredis
from redis import Redis

from forkq.store.push_steps import BATCH, Push
from forkq.store.route import EncodedJob
from forkq.wire.keys import Keys
from tests.support.server import Server

PUSHES = 20


async def carry_out(push: Push, server: Server) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    replies = hiredis.Reader()
    found: list[object] = []
    while (step := push.next_step(found)) is not None:
        commands, _, awaited = step
        writer.write(commands)
        found = []
        while len(found) < awaited:
            if (reply := replies.gets()) is False:
                replies.feed(await reader.read(65_536))
            else:
                found.append(reply)
    writer.close()
    await writer.wait_closed()


def test_pushes_are_carried_out_side_by_side_in_one_thread(
    redis: Redis, redis_server: Server
) -> None:
    jobs = [EncodedJob(f"{number}", "mail", None, b"{}") for number in range(BATCH + 1)]
    pushes = [Push(jobs[: 1 if number else BATCH + 1], Keys()) for number in range(PUSHES)]

    async def all_at_once() -> None:
        await asyncio.gather(*(carry_out(push, redis_server) for push in pushes))

    asyncio.run(all_at_once())
    assert [len(push.pushed) for push in pushes] == [BATCH + 1] + [1] * (PUSHES - 1)
    assert not any(push.go_on() for push in pushes)
    assert redis.llen("queue:mail") == BATCH + PUSHES
