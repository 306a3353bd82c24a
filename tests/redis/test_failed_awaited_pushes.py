"""An awaited push that Redis refuses, or whose connection is cut: as a push of a thread says it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq.client import Client
from forkq.errors import ServerUnavailable
from tests.redis import test_failed_pushes as refusals
from tests.redis.test_failed_pushes import JOB, in_redis
from tests.support.cluster import Cluster, slot_of
from tests.support.server import Server

# The replies to one push, SADD and LPUSH: ":1\r\n" twice.
REPLIES = 8


@pytest.mark.parametrize(
    "make",
    [
        refusals._no_right,
        refusals._no_right_to_the_key,
        refusals._full,
        refusals._replica,
        refusals._too_few,
        refusals._wrong_type,
        refusals._wrong_password,
        refusals._no_password,
    ],
)
def test_each_refusal_is_that_of_a_push_without_await(make: Callable[[Server], str]) -> None:
    server = Server(tcp=True).start()
    try:
        client = Client(make(server))

        async def attempt() -> ServerUnavailable:
            with pytest.raises(ServerUnavailable) as caught:
                await client.apush(JOB)
            return caught.value

        with pytest.raises(ServerUnavailable) as expected:
            client.push(JOB)
        found = asyncio.run(attempt())
        assert (type(found), str(found)) == (type(expected.value), str(expected.value))
        assert (found.pushed, found.unknown) == ((), ())
        client.close()
    finally:
        server.close()


class Cutter:
    """A proxy in the loop. Once it is armed, it passes ``left`` bytes of the replies, or of the
    requests, and hangs up."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.left: dict[str, int | None] = {"requests": None, "replies": None}

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.target)
        with suppress(OSError):
            await asyncio.gather(
                self._pass("requests", reader, server_writer),
                self._pass("replies", server_reader, writer),
            )
        for each in (writer, server_writer):
            each.close()

    async def _pass(
        self, what: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(65_536):
            left = self.left[what]
            if left is not None:
                data, self.left[what] = data[:left], left - len(data[:left])
            writer.write(data)
            await writer.drain()
            if self.left[what] == 0:
                break
        writer.close()


def pushed_through(server: Server, what: str, count: int) -> Any:
    """A second push over a connection that is cut after ``count`` bytes: its jid, or its error."""

    async def main() -> Any:
        cutter = Cutter(server.port)
        door = await asyncio.start_server(cutter, "127.0.0.1", 0)
        client = Client(f"redis://127.0.0.1:{door.sockets[0].getsockname()[1]}", timeout=20)
        await client.apush({**JOB, "queue": "before"})
        cutter.left[what] = count
        try:
            return await client.apush(JOB)
        except ServerUnavailable as error:
            return error
        finally:
            await client.aclose()
            door.close()

    return asyncio.run(main())


@pytest.mark.parametrize("count", range(1, REPLIES))
def test_a_reply_that_is_cut_at_any_byte_leaves_the_outcome_unknown(
    redis: Redis, redis_server: Server, count: int
) -> None:
    error = pushed_through(redis_server, "replies", count)
    assert "whether the job was pushed is not known" in str(error)
    assert set(error.unknown) == in_redis(redis)


@pytest.mark.parametrize("count", [1, 20, 40, 60, 80, 120, 160])
def test_a_request_that_is_cut_is_never_said_to_be_in_redis(
    redis: Redis, redis_server: Server, count: int
) -> None:
    """Redis has not got the whole of it: the job is not there, and may be, as far as one knows."""
    error = pushed_through(redis_server, "requests", count)
    outcome = forkq.push_outcome(error)
    assert outcome is not None
    assert (len(outcome.pushed), len(outcome.unknown)) == (0, 1)
    assert in_redis(redis) == set()


def test_a_slot_that_has_moved_is_followed() -> None:
    cluster = Cluster(2).start()
    try:
        source, target = cluster.primaries
        url = f"cluster://127.0.0.1:{source.port}"
        client = Client(url, prefix="{f}:")

        async def main() -> list[Any]:
            jids = [await client.apush(JOB)]
            slot = slot_of(source, "{f}:queues")
            owner = cluster.owner(slot)
            other = target if owner is source else source
            await asyncio.to_thread(cluster.move, slot, owner, other)
            jids += await asyncio.gather(*(client.apush(JOB) for _ in range(20)))
            await client.aclose()
            assert other.client().llen("{f}:queue:default") == 21
            return jids

        assert len(set(asyncio.run(main()))) == 21
    finally:
        cluster.close()
