"""Pushes that an event loop awaits: one connection, and each push gets its own answer."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import socket
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Coroutine, Generator, Iterator
from contextlib import suppress
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import default_client, registry, testing
from forkq.client import Client
from forkq.store.push_steps import BATCH
from forkq.wire.payload import loads
from tests.redis.test_failed_pushes import in_redis
from tests.support.documents import ROOT
from tests.support.loops import Run, turns, until
from tests.support.server import Server
from tests.support.waiting import wait_until

JOB: dict[str, Any] = {"class": "MyJob", "args": []}


@forkq.job(name="awaited.Mail", queue="mail")
def mail(number: int, subject: str = "") -> None:
    """Only pushed."""


class Thumbnail(forkq.Job, name="awaited.Thumbnail", queue="images", retry=3):
    """Only pushed."""

    def perform(self, path: str) -> None: ...


@pytest.fixture
def client(redis: Redis, redis_server: Server) -> Iterator[Client]:
    """The client of the jobs of this module."""
    client = Client(redis_server.url)
    before = default_client.swap(client)
    yield client
    default_client.swap(before)
    client.close()


def payloads(redis: Redis, queue: str = "mail") -> list[dict[str, Any]]:
    found: Any = redis.lrange(f"queue:{queue}", 0, -1)
    return [loads(each) for each in found[::-1]]


def connections(redis: Redis) -> int:
    return len(redis.client_list())


class NoReaders(asyncio.SelectorEventLoop):
    """As the loop that Windows has by default."""

    def add_reader(self, *_: Any) -> None:  # type: ignore[override]
        raise NotImplementedError


def test_each_way_of_awaiting_a_push(client: Client, redis: Redis, run: Run) -> None:
    async def main() -> list[str]:
        return [
            await mail.aperform_async(1, subject="hi"),
            await Thumbnail.aperform_async("a.png"),
            await Thumbnail.set(queue="mail").aperform_async("b.png"),
            await mail.aperform_in(60, 2),
            await Thumbnail.aperform_at(4e9, "c.png"),
            *await mail.aperform_bulk([(3,), (4, "x")]),
            await client.apush({**JOB, "queue": "mail", "args": [5]}) or "",
        ]

    jids = run(main())
    waiting = payloads(redis)
    found: Any = redis.zrange("schedule", 0, -1, withscores=True)
    later, latest = found
    assert [job["args"] for job in waiting] == [[1, "hi"], ["b.png"], [3], [4, "x"], [5]]
    [image] = payloads(redis, "images")
    assert (image["retry"], image["class"]) == (3, "awaited.Thumbnail")
    scheduled = [loads(later[0]), loads(latest[0])]
    in_order = [*waiting[:1], image, *waiting[1:2], *scheduled, *waiting[2:]]
    assert [job["jid"] for job in in_order] == jids
    assert scheduled[0]["args"] == [2]
    assert latest[1] == 4e9
    assert redis.smembers("queues") == {b"mail", b"images"}


def test_a_payload_is_that_of_a_push_without_await(client: Client, redis: Redis) -> None:
    async def main() -> None:
        await mail.aperform_async(1)

    mail.perform_async(1)
    asyncio.run(main())
    one, other = payloads(redis)
    assert list(one) == list(other)
    differ = {"jid", "created_at", "enqueued_at"}
    assert all(one[key] == other[key] for key in one.keys() - differ)


def test_a_thousand_pushes_at_once_share_one_connection(
    client: Client, redis: Redis, run: Run
) -> None:
    before = connections(redis)

    async def main() -> tuple[list[str], int]:
        await client.apush(JOB)
        jids = await asyncio.gather(*(mail.aperform_async(number) for number in range(1000)))
        return jids, connections(redis)

    jids, during = run(main())
    assert during == before + 1
    assert [[job["jid"], job["args"]] for job in payloads(redis)] == [
        [jid, [number]] for number, jid in enumerate(jids)
    ]


def test_what_a_push_refuses_it_refuses_when_it_is_awaited(client: Client, redis: Redis) -> None:
    async def attempt(push: Coroutine[Any, Any, Any]) -> str:
        with pytest.raises(forkq.InvalidJob) as caught:
            await push
        return str(caught.value)

    async def main() -> list[str]:
        anything: Any = mail
        return [
            await attempt(anything.aperform_async()),
            await attempt(anything.aperform_in(None, 1)),
            await attempt(anything.aperform_bulk([(1,), 7])),
            await attempt(anything.aperform_bulk("rows")),
            await attempt(anything.aperform_bulk([(1,)] * 700 + [(object(),)])),
        ]

    said = asyncio.run(main())
    assert "missing a required argument" in said[0]
    assert said[2].startswith("row 1 (the first is 0)")
    assert said[4].startswith("row 700 (the first is 0)")
    assert redis.dbsize() == 0


def test_client_middleware_changes_and_vetoes(client: Client, redis: Redis) -> None:
    def tenant(job: forkq.Payload, call: forkq.NextCall) -> Any:
        job["tenant"] = 7
        return None if job["args"] == [2] else call()

    async def main() -> list[Any]:
        single = [await mail.aperform_async(1), await mail.aperform_async(2)]
        return [*single, await mail.aperform_bulk([(2,), (3,)])]

    forkq.middleware.client.append(tenant)
    try:
        jid, vetoed, rest = asyncio.run(main())
    finally:
        forkq.middleware.client.remove(tenant)
    assert vetoed == ""
    assert [job["jid"] for job in payloads(redis)] == [jid, *rest]
    assert {job["tenant"] for job in payloads(redis)} == {7}


Seen = list[tuple[str, Any, int]]


@pytest.fixture
def around(redis: Redis) -> Iterator[Seen]:
    """What a generator around pushes has seen of each: the class, the result or the error, and how
    many jobs Redis had by then."""
    seen: Seen = []

    def watch(job: forkq.Payload) -> Generator[None, Any, None]:
        try:
            result = yield
        except BaseException as error:
            seen.append((job["class"], error, redis.llen("queue:mail")))
            raise
        seen.append((job["class"], result, redis.llen("queue:mail")))

    forkq.middleware.pushes.append(watch)
    yield seen
    forkq.middleware.pushes.remove(watch)


def test_what_stands_around_pushes_ends_when_redis_has_the_jobs(
    client: Client, around: Seen
) -> None:
    async def main() -> tuple[str, list[str]]:
        return await mail.aperform_async(1), await mail.aperform_bulk([(2,), (3,)])

    jid, jids = asyncio.run(main())
    assert around == [("awaited.Mail", jid, 1), ("awaited.Mail", jids, 3)]


def test_what_stands_around_pushes_sees_how_they_fail(
    client: Client, redis: Redis, own_server: Server, around: Seen
) -> None:
    """By an error of Redis, and by a cancellation, which says what it knows."""
    hanging, away = Client(own_server.url), Client("redis://127.0.0.1:1/0")

    async def main() -> None:
        with pytest.raises(forkq.ServerUnavailable):
            await away.apush(JOB)
        await hanging.apush(JOB)
        own_server.pause()
        try:
            task = asyncio.create_task(hanging.apush_bulk({**JOB, "args": [[1], [2]]}))
            await turns(20)
            task.cancel()
            await asyncio.wait({task})
        finally:
            own_server.resume()
        assert task.cancelled()
        await hanging.aclose()

    asyncio.run(main())
    refused, pushed, cancelled = (result for _, result, _ in around)
    assert isinstance(refused, forkq.ServerUnavailable)
    assert isinstance(pushed, str)
    outcome = forkq.push_outcome(cancelled)
    assert outcome is not None
    assert len(outcome.unknown) == 2


def test_a_middleware_of_pushes_may_deal_with_an_error(client: Client) -> None:
    def swallow(_job: forkq.Payload) -> Iterator[None]:
        with suppress(forkq.ServerUnavailable):
            yield

    async def main() -> object:
        return await Client("redis://127.0.0.1:1/0").apush(JOB)

    forkq.middleware.pushes.append(swallow)
    try:
        assert asyncio.run(main()) is None
    finally:
        forkq.middleware.pushes.remove(swallow)


def test_a_middleware_of_pushes_that_takes_call_is_around_the_encoding(
    client: Client, redis: Redis
) -> None:
    """It may veto the push, and cannot wait for Redis."""
    seen: list[Any] = []

    def around(job: forkq.Payload, call: forkq.NextCall) -> Any:
        if job["args"] == [4]:
            return ""
        seen.append((job["class"], call(), redis.llen("queue:mail")))
        return seen[-1][1]

    async def main() -> tuple[str, list[str], str]:
        jid, jids = await mail.aperform_async(1), await mail.aperform_bulk([(2,), (3,)])
        return jid, jids, await mail.aperform_async(4)

    forkq.middleware.pushes.append(around)
    try:
        jid, jids, vetoed = asyncio.run(main())
    finally:
        forkq.middleware.pushes.remove(around)
    assert seen == [("awaited.Mail", jid, 0), ("awaited.Mail", jids, 1)]
    assert [job["jid"] for job in payloads(redis)] == [jid, *jids]
    assert vetoed == ""


def test_a_unique_job_is_pushed_once_also_where_redis_has_lost_the_script(
    client: Client, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_jobs", {})

    @forkq.job(name="Once", unique_for=60, on_duplicate="return")
    def once(number: int) -> None: ...

    async def main() -> list[Any]:
        redis.script_flush()
        first = await asyncio.gather(once.aperform_async(1), once.aperform_async(1))
        return [*first, *await once.aperform_bulk([(1,), (2,)])]

    first, second, third, other = asyncio.run(main())
    assert first == second == third != other
    assert [job["args"] for job in payloads(redis, "default")] == [[1], [2]]


def test_two_runs_a_loop_in_each_thread_and_one_left_open(client: Client, redis: Redis) -> None:
    """Each loop has its connection, which ends with the loop, and nothing warns."""
    before = connections(redis)

    async def push() -> str:
        return await mail.aperform_async(1)

    def in_own_loop() -> None:
        loop = asyncio.new_event_loop()
        jids.append(loop.run_until_complete(push()))
        loop.close()

    jids = [asyncio.run(push()), asyncio.run(push())]
    threads = [threading.Thread(target=in_own_loop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    loop = asyncio.new_event_loop()
    jids += [loop.run_until_complete(push()), loop.run_until_complete(push())]
    assert connections(redis) == before + 1
    loop.close()
    del loop
    gc.collect()
    wait_until(lambda: connections(redis) == before, what="the end of all connections")
    assert sorted(job["jid"] for job in payloads(redis)) == sorted(jids)


def test_a_closed_loop_that_something_refers_to_keeps_no_connection_for_long(
    client: Client, redis: Redis
) -> None:
    """The first push of the next loop closes that of a loop which is closed."""
    before = connections(redis)

    async def push() -> asyncio.AbstractEventLoop:
        await mail.aperform_async(1)
        return asyncio.get_running_loop()

    kept = [asyncio.run(push()) for _ in range(3)]
    gc.collect()
    wait_until(lambda: connections(redis) <= before + 1, what="the end of all but the last")
    assert len(kept) == 3


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # the parent may have threads
def test_a_forked_process_pushes_over_a_connection_of_its_own(client: Client, redis: Redis) -> None:
    """A child of a loop that has pushed, and its parent in that loop afterwards."""

    async def push(number: int) -> None:
        await asyncio.wait_for(mail.aperform_async(number), 60)

    async def main() -> int:
        await push(0)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                thread = threading.Thread(target=lambda: asyncio.run(push(1)))
                thread.start()  # this thread still has the parent's loop
                thread.join()
                code = 0
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(await asyncio.to_thread(lambda: os.waitpid(pid, 0)[1]))
        await asyncio.gather(*(push(number) for number in range(2, 10)))
        return code

    assert asyncio.run(main()) == 0
    assert sorted(job["args"][0] for job in payloads(redis)) == list(range(10))


def test_a_connection_keeps_nothing_of_the_push_that_has_opened_it(client: Client) -> None:
    class Request:
        """What an app has in a context variable."""

    current: contextvars.ContextVar[Request] = contextvars.ContextVar("current")

    async def handler() -> Any:
        request = Request()
        current.set(request)
        await asyncio.gather(*(mail.aperform_async(number) for number in range(3)))
        return weakref.ref(request)

    async def main() -> object:
        kept = await asyncio.create_task(handler())
        await mail.aperform_async(4)
        gc.collect()
        return kept()

    assert asyncio.run(main()) is None


def test_pushes_that_are_cancelled_at_any_moment_tell_the_truth(
    client: Client, redis: Redis, run: Run
) -> None:
    """10,000 pushes, each cancelled after some turns of the loop: what is said to be in Redis is
    there, what is said not to be is not, and no reply is read by another push."""
    told: dict[str, list[str]] = {"pushed": [], "unknown": [], "done": []}
    kinds = [0, 0, 0, 0]

    async def one(number: int) -> None:
        try:
            told["done"].append(await mail.aperform_async(number))
            kinds[3] += 1
        except asyncio.CancelledError as error:
            outcome = forkq.push_outcome(error)
            assert outcome is not None
            told["pushed"] += outcome.pushed
            told["unknown"] += outcome.unknown
            kinds[0 if not any(outcome) else 1 if outcome.unknown else 2] += 1
            raise

    async def main() -> None:
        for first in range(0, 10_000, 100):
            tasks = [asyncio.create_task(one(first + number)) for number in range(100)]
            await turns(1)
            for number, task in enumerate(tasks):
                if number % 10 == 0:
                    await turns(first // 100 % 5)
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert [await mail.aperform_async(-1), await mail.aperform_async(-2)]

    run(main())
    there = in_redis(redis, "mail")
    sure = {*told["pushed"], *told["done"]}
    assert sure <= there
    assert len(there) - 2 <= len(sure) + len(told["unknown"])
    assert len(there - sure - set(told["unknown"])) == 2  # the last two
    assert min(kinds[0], kinds[1]) > 10
    assert sum(kinds) == 10_000


def test_a_reply_that_came_before_the_cancellation_counts(client: Client, redis: Redis) -> None:
    """The loop was busy meanwhile: the reply waits in its socket, or the push was just told."""

    async def main() -> forkq.PushOutcome | None:
        await mail.aperform_async(0)
        task = asyncio.create_task(mail.aperform_async(1))
        before = redis.llen("queue:mail")
        await turns(1)
        wait_until(lambda: redis.llen("queue:mail") == before + 1, what="the job")
        loop = asyncio.get_running_loop()
        loop.call_soon(lambda: loop.call_soon(task.cancel))  # in the turn in which it is read
        try:
            await task
        except asyncio.CancelledError as error:
            return forkq.push_outcome(error)
        return None

    found = [asyncio.run(main()) for _ in range(3)]
    assert all(each is None or each.unknown or each.pushed for each in found)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.timeout, and notes on errors")
def test_a_time_out_of_the_app_has_the_outcome(
    own_server: Server,
) -> None:
    client = Client(own_server.url)
    later: Any = asyncio  # mypy reads the code as Python 3.10 does

    async def timed() -> BaseException:
        try:
            async with later.timeout(0.05):
                await client.apush(JOB)
        except TimeoutError as error:
            return error
        raise AssertionError("it was pushed")

    async def waited() -> BaseException:
        try:
            await asyncio.wait_for(client.apush(JOB), 0.05)
        except TimeoutError as error:
            return error
        raise AssertionError("it was pushed")

    async def main() -> list[BaseException]:
        await client.apush(JOB)
        own_server.pause()
        try:
            return [await timed(), await waited()]
        finally:
            own_server.resume()
            await client.aclose()

    for error in asyncio.run(main()):
        outcome = forkq.push_outcome(error)
        assert outcome is not None
        assert len(outcome.unknown) == 1
        noted: Any = error.__cause__
        assert noted.__notes__ == ["forkq: whether the job was pushed is not known"]


def test_a_server_that_hangs_ends_each_push_in_time_and_the_loop_goes_on(
    own_server: Server,
) -> None:
    client = Client(own_server.url, timeout=1)
    ticks = [0]

    async def tick() -> None:
        while True:
            ticks[0] += 1
            await asyncio.sleep(0.01)

    async def main() -> list[Any]:
        await client.apush(JOB)
        ticking = asyncio.create_task(tick())
        own_server.pause()
        try:
            pushes = (client.apush(JOB) for _ in range(3))
            return [*await asyncio.gather(*pushes, return_exceptions=True)]
        finally:
            own_server.resume()
            ticking.cancel()

    errors = asyncio.run(main())
    assert [type(error) for error in errors] == [forkq.ServerUnavailable] * 3
    assert all("no answer within 1 s" in str(error) for error in errors)
    assert all(len(error.unknown) == 1 for error in errors)
    assert ticks[0] >= 5


def test_more_than_the_socket_takes_is_written_when_it_takes_more(
    own_server: Server, run: Run
) -> None:
    """Behind another push that is under way, as what a turn of the loop sends together."""
    client = Client(own_server.url)
    rows = [["x" * 20_000]] * 500

    async def main() -> int:
        await client.apush(JOB)
        own_server.pause()
        first = asyncio.create_task(client.apush(JOB))
        await turns(3)
        tasks = [asyncio.create_task(client.apush_bulk({**JOB, "args": rows})) for _ in range(2)]
        await turns(100)
        own_server.resume()
        assert await first
        jids = [*await tasks[0], *await tasks[1]]
        await client.aclose()
        return len(set(jids))

    assert run(main()) == 1000
    assert own_server.client().llen("queue:default") == 1002


def test_the_next_push_connects_again_after_a_restart(own_server: Server, run: Run) -> None:
    client = Client(own_server.url)

    async def main() -> None:
        await client.apush(JOB)
        await asyncio.to_thread(own_server.restart)
        await client.apush(JOB)
        await client.aclose()

    run(main())


def test_a_bulk_push_that_is_cancelled_says_which_jobs_are_in(client: Client, redis: Redis) -> None:
    async def main() -> Any:
        rows = [(number,) for number in range(20 * BATCH)]
        task = asyncio.create_task(mail.aperform_bulk(rows))
        await until(lambda: redis.llen("queue:mail"), "the first batch")
        await turns(3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        await mail.aperform_async(-1)
        return forkq.push_outcome(caught.value)

    outcome = asyncio.run(main())
    there = in_redis(redis, "mail")
    assert set(outcome.pushed) <= there
    assert len(there - {*outcome.pushed, *outcome.unknown}) == 1
    assert len(outcome.unknown) <= 4 * BATCH


def test_the_loop_goes_on_while_a_large_bulk_push_is_encoded(client: Client, redis: Redis) -> None:
    ticks = [0]

    async def tick() -> None:
        while True:
            ticks[0] += 1
            await asyncio.sleep(0)

    async def main() -> int:
        ticking = asyncio.create_task(tick())
        jids = await mail.aperform_bulk([(number,) for number in range(10_000)])
        ticking.cancel()
        return len(jids)

    assert asyncio.run(main()) == redis.llen("queue:mail") == 10_000
    assert ticks[0] > 100


def test_the_end_of_the_client_awaits_what_is_under_way(client: Client, redis: Redis) -> None:
    before = connections(redis)

    async def main() -> list[str]:
        await mail.aperform_async(0)
        tasks = [asyncio.create_task(mail.aperform_async(number)) for number in range(50)]
        await turns(1)
        await client.aclose()
        assert await asyncio.gather(*tasks)
        await until(lambda: connections(redis) == before, "the end of the connection")
        return [await mail.aperform_async(51)]  # and a later push opens another one

    assert asyncio.run(main())
    assert redis.llen("queue:mail") == 52


def test_close_from_another_thread_ends_the_connection_of_a_loop(
    client: Client, redis: Redis
) -> None:
    before = connections(redis)

    async def main() -> None:
        await mail.aperform_async(1)
        await asyncio.to_thread(client.close)
        await until(lambda: connections(redis) == before, "the end of the connection")
        await mail.aperform_async(2)

    asyncio.run(main())
    assert redis.llen("queue:mail") == 2


def test_a_slow_look_up_of_a_name_holds_nothing_up(
    redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resolver answers when the loop has gone on: on the loop it would wait for ever."""
    ticked, found = threading.Event(), socket.getaddrinfo

    def slow(*args: Any, **named: Any) -> Any:
        assert ticked.wait(60), "the loop waits for the resolver"
        return found("127.0.0.1", *args[1:], **named)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    client = Client(redis_server.url.replace("127.0.0.1", "redis.example"))

    async def main() -> str | None:
        task = asyncio.create_task(client.apush(JOB))
        cancelled = asyncio.create_task(client.apush(JOB))
        await turns(50)
        cancelled.cancel()
        with suppress(asyncio.CancelledError):
            await cancelled
        ticked.set()
        try:
            return await task
        finally:
            await client.aclose()

    assert asyncio.run(main())


IMPORTS = """
import asyncio, sys, threading
import forkq

ticked = threading.Event()

class Waits:
    def find_spec(self, name, path=None, target=None):
        if name == "redis":
            assert ticked.wait(60), "the loop waits for the import of redis-py"

sys.meta_path.insert(0, Waits())

@forkq.job(name="Noop")
def noop(number: int) -> None: ...

async def main():
    task = asyncio.create_task(noop.aperform_async(1))
    for _ in range(100):
        await asyncio.sleep(0)
    assert "redis" not in sys.modules
    ticked.set()
    print(await task)

asyncio.run(main())
"""


def test_the_import_of_redis_py_holds_nothing_up(redis: Redis, redis_server: Server) -> None:
    """Nor does the configuration, which is read at the first push."""
    env = {**os.environ, "FORKQ_REDIS": redis_server.url}
    command = [sys.executable, "-W", "error", "-c", IMPORTS]
    made = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    assert in_redis(redis) == {made.stdout.strip()}


def test_a_push_without_await_warns_where_it_is_called(client: Client) -> None:
    """Once for each line, as Python does with warnings; in a thread it blocks no loop."""

    async def main() -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            for _ in range(2):
                mail.perform_async(1)
            helper()
            client.push_bulk({**JOB, "args": [[1]]})
        assert {each.category for each in caught} == {forkq.BlockingPushWarning}
        assert all("await J.aperform_async(...)" in str(each.message) for each in caught)
        assert [each.filename for each in caught] == [__file__] * 3
        lines = [each.lineno for each in caught]
        first = main.__code__.co_firstlineno
        assert [lines[0] - first, lines[2] - first] == [4, 6]
        assert lines[1] == helper.__code__.co_firstlineno + 1
        await asyncio.to_thread(mail.perform_async, 2)

    def helper() -> None:
        mail.perform_bulk([(1,)])

    asyncio.run(main())


def test_a_test_that_records_pushes_records_awaited_ones() -> None:
    async def main() -> list[Any]:
        return [await mail.aperform_async(1), *await mail.aperform_bulk([(2,), (3,)])]

    with testing.fake() as jobs:
        jids = asyncio.run(main())
    assert [job.jid for job in jobs] == jids


def test_without_a_loop_of_asyncio_the_error_says_so(client: Client) -> None:
    """As under trio, whose loop drives the coroutine."""
    client.push(JOB)  # redis-py is imported
    with pytest.raises(forkq.ForkqError, match="a push is awaited in a loop of asyncio"):
        mail.aperform_async(1).send(None)


def test_a_loop_that_watches_no_sockets_is_refused(redis_server: Server, redis: Redis) -> None:
    client = Client(redis_server.url)
    loop = NoReaders()
    for _ in range(2):
        with pytest.raises(forkq.ForkqError, match=r"loop_factory=asyncio\.Selector"):
            loop.run_until_complete(client.apush(JOB))
    loop.close()
    assert redis.dbsize() == 0
