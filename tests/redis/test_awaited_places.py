"""Awaited pushes to each kind of place: TLS, a Unix socket, Sentinels, shards, a spread queue."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq.client import Client
from forkq.errors import ServerUnavailable
from forkq.store.sentinel import SentinelView
from forkq.wire.payload import loads
from forkq.wire.spread import part_of
from tests.redis.test_failed_pushes import in_redis
from tests.support.loops import Run, turns, until
from tests.support.sentinels import SentinelGroup
from tests.support.server import Server
from tests.support.shards import TwoShards, two_shards
from tests.support.spread import JOB as SPREAD
from tests.support.spread import PARTS, Spread, jids_for, three_parts
from tests.support.tls_server import TlsServer, certify
from tests.support.waiting import within

JOB: dict[str, Any] = {"class": "MyJob", "args": []}
LARGE = "x" * 50_000  # more than one record of TLS, and than one read


async def ended_by(push: Coroutine[Any, Any, Any]) -> BaseException:
    """What a push raises that cannot succeed."""
    try:
        await push
    except (ServerUnavailable, asyncio.CancelledError) as error:
        return error
    raise AssertionError("it was pushed")


async def answer_of(push: Coroutine[Any, Any, str | None]) -> str | ServerUnavailable:
    """The jid of a push, or its error."""
    try:
        jid = await push
    except ServerUnavailable as error:
        return error
    assert jid is not None
    return jid


# TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    if not certify(folder):
        pytest.skip("there is no openssl here")
    return folder


@pytest.fixture(scope="module")
def tls_server(certificates: Path) -> Iterator[TlsServer]:
    cert, key = certificates / "cert.pem", certificates / "key.pem"
    extra = ("--tls-cert-file", str(cert), "--tls-key-file", str(key), "--tls-auth-clients", "no")
    server = TlsServer(extra=extra)
    try:
        with contextlib.closing(server):
            yield server.start()
    except RuntimeError:
        pytest.skip("this server has no TLS")


@pytest.fixture
def tls(tls_server: TlsServer, certificates: Path) -> Iterator[Client]:
    """Pushes to an empty server by TLS."""
    tls_server.cli("FLUSHALL")
    where = f"rediss://localhost:{tls_server.tls_port}/0?ssl_ca_certs={certificates}/cert.pem"
    client = Client(where)
    yield client
    client.close()
    tls_server.close_clients()


def test_pushes_by_tls_share_one_connection(tls: Client, tls_server: TlsServer, run: Run) -> None:
    redis = tls_server.client()
    before = len(redis.client_list())

    async def main() -> tuple[list[Any], int]:
        await tls.apush({**JOB, "queue": "first"})
        pushes = (tls.apush({**JOB, "args": [number]}) for number in range(500))
        jids = await asyncio.gather(*pushes)
        return jids, len(redis.client_list())

    jids, during = run(main())
    found: Any = redis.lrange("queue:default", 0, -1)
    assert [loads(each)["jid"] for each in found[::-1]] == jids
    assert during == before + 1


def test_more_than_tls_takes_at_once_is_written_when_it_takes_more(
    tls: Client, tls_server: TlsServer, run: Run
) -> None:
    """Behind a push that is under way, while the server reads nothing."""

    async def main() -> list[Any]:
        first = await tls.apush(JOB)
        tls_server.pause()
        under_way = asyncio.create_task(tls.apush(JOB))
        await turns(3)
        rows = [[LARGE]] * 200
        bulk = [asyncio.create_task(tls.apush_bulk({**JOB, "args": rows})) for _ in range(2)]
        await turns(50)
        tls_server.resume()
        return [first, await under_way, *await bulk[0], *await bulk[1]]

    jids = run(main())
    assert in_redis(tls_server.client()) == set(jids)
    assert len(set(jids)) == 402


def test_pushes_by_tls_that_are_cancelled_leave_no_reply_to_others(
    tls: Client, tls_server: TlsServer, run: Run
) -> None:
    done: list[str | None] = []
    outcomes: list[forkq.PushOutcome | None] = []

    async def push() -> None:
        try:
            done.append(await tls.apush(JOB))
        except asyncio.CancelledError as error:
            outcomes.append(forkq.push_outcome(error))

    async def main() -> None:
        for count in range(40):
            tasks = [asyncio.create_task(push()) for _ in range(10)]
            await turns(1 + count % 4)  # a task that has not begun knows nothing of a push
            for task in tasks[::2]:
                task.cancel()
            await asyncio.wait(tasks)

    run(main())
    there = in_redis(tls_server.client())
    told = [each for each in outcomes if each is not None]
    sure = {*done, *(jid for each in told for jid in each.pushed)}
    assert sure <= there <= sure | {jid for each in told for jid in each.unknown}
    assert len(done) + len(told) == 400
    assert len(told) > 100


def test_the_next_push_shakes_hands_again_when_the_server_has_hung_up(
    tls: Client, tls_server: TlsServer, run: Run
) -> None:
    async def main() -> list[str | None]:
        jids = [await tls.apush(JOB)]
        tls_server.cli("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        jids.append(await tls.apush(JOB))
        await tls.aclose()
        return jids

    jids = run(main())
    assert in_redis(tls_server.client()) == set(jids)
    assert len(set(jids)) == 2


def test_a_certificate_that_is_not_trusted_ends_the_push(tls_server: TlsServer) -> None:
    client = Client(f"rediss://localhost:{tls_server.tls_port}/0")
    error = asyncio.run(ended_by(client.apush(JOB)))
    assert "certificate" in str(error)
    assert forkq.push_outcome(error) == forkq.PushOutcome()


# A Unix socket


def test_pushes_over_a_unix_socket(redis: Redis, redis_server: Server, run: Run) -> None:
    client = Client(redis_server.unix_url)

    async def main() -> list[Any]:
        jids = [await client.apush({**JOB, "args": [LARGE]})]
        jids += await asyncio.gather(*(client.apush(JOB) for _ in range(200)))
        jids += await client.apush_bulk({**JOB, "args": [[LARGE]] * 50})
        assert sum(each["addr"].endswith("redis.sock:0") for each in redis.client_list()) == 1
        await client.aclose()
        return jids

    jids = run(main())
    assert in_redis(redis) == set(jids)
    assert len(jids) == 251


def test_a_unix_socket_that_is_away_and_comes_back(own_server: Server, run: Run) -> None:
    client = Client(own_server.unix_url)

    async def main() -> None:
        await client.apush(JOB)
        await asyncio.to_thread(own_server.stop)
        error = await ended_by(client.apush(JOB))
        assert forkq.push_outcome(error) == forkq.PushOutcome()
        await asyncio.to_thread(own_server.start)
        assert await client.apush(JOB)
        await client.aclose()

    run(main())


# Sentinels


@pytest.fixture
def group() -> Iterator[SentinelGroup]:
    group = SentinelGroup()
    try:
        yield group.wait_complete()
    finally:
        group.close()
        SentinelView._by_url.clear()  # ports are used again


class Pushers:
    """Coroutines of one loop that push without a pause, and what became of each push."""

    def __init__(self, client: Client) -> None:
        self.done: list[str] = []
        self.errors: list[ServerUnavailable] = []
        self.is_over = False
        self.longest_turn = 0.0
        self._client = client

    async def push(self) -> None:
        while not self.is_over:
            answer = await answer_of(self._client.apush(JOB))
            if isinstance(answer, str):
                self.done.append(answer)
            else:
                self.errors.append(answer)
                await asyncio.sleep(0.05)  # as an app that tries again
            await asyncio.sleep(0.001)

    async def tick(self) -> None:
        """Notes for how long the loop was away from here."""
        while not self.is_over:
            before = time.monotonic()
            await asyncio.sleep(0.001)
            self.longest_turn = max(self.longest_turn, time.monotonic() - before)


@pytest.mark.parametrize("way", ["kill", pytest.param("freeze", marks=pytest.mark.slow)])
def test_a_failover_is_followed_while_pushes_are_awaited(
    group: SentinelGroup, run: Run, way: str
) -> None:
    """What was pushed before it is at the new master, each push of the failover itself says what
    became of it, later ones are in the new master, and the loop was never held up."""
    client = Client(group.url, timeout=2)
    pushers = Pushers(client)

    async def main() -> tuple[set[str], set[str]]:
        tasks = [asyncio.create_task(pushers.push()) for _ in range(8)]
        tasks.append(asyncio.create_task(pushers.tick()))
        await until(lambda: len(pushers.done) > 100, "the first pushes")
        safe = set(pushers.done)
        await asyncio.to_thread(group.replicate)
        await asyncio.to_thread(group.old.kill if way == "kill" else group.old.pause)
        await until(group.promoted, "a new master", deadline=30)
        count = len(pushers.done)
        await until(lambda: len(pushers.done) > count + 100, "pushes to the new master")
        late = set(pushers.done[count + 50 :])
        pushers.is_over = True
        await asyncio.gather(*tasks)
        await client.aclose()
        return safe, late

    safe, late = run(main())
    there = in_redis(group.new.client())
    assert safe | late <= there
    assert len(late) >= 50
    outcomes = [forkq.push_outcome(error) for error in pushers.errors]
    assert outcomes
    unknown = {jid for each in outcomes if each for jid in each.unknown}
    assert there <= {*pushers.done} | unknown
    assert pushers.longest_turn < within(1.0)


@pytest.mark.slow
def test_a_master_that_steps_down_takes_no_further_pushes(group: SentinelGroup, run: Run) -> None:
    """Sentinels name another one while the old one lives. Nothing raises: what it refuses as a
    replica is sent to the new one."""
    client = Client(group.url)

    async def main() -> list[str | None]:
        jids = [await client.apush(JOB)]
        await asyncio.to_thread(group.replicate)
        await asyncio.to_thread(group.sentinels[0].cli, "SENTINEL", "FAILOVER", "main")
        await until(group.promoted, "a new master", deadline=30)
        await until(group.demoted, "the old master's new role", deadline=40)
        jids += await asyncio.gather(*(client.apush(JOB) for _ in range(50)))
        await client.aclose()
        return jids

    jids = run(main())
    assert in_redis(group.new.client()) == set(jids)


# Shards


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoShards]:
    monkeypatch.chdir(tmp_path)
    with two_shards(tmp_path) as made:
        yield made


def odd_to_mail(job: forkq.Payload) -> Iterator[None]:
    """Sends every second job of a bulk push to the other shard."""
    job["queue"] = "mail" if job["args"][0] % 2 else "default"
    yield


@pytest.fixture
def divided() -> Iterator[None]:
    forkq.middleware.client.append(odd_to_mail)
    yield
    forkq.middleware.client.remove(odd_to_mail)


def sizes(shards: TwoShards, *queues: str) -> list[int]:
    return [forkq.Queue(queue).size for queue in queues]


def test_each_awaited_push_goes_to_the_shard_of_its_queue(shards: TwoShards, run: Run) -> None:
    """One by one, in bulk, for later, and many at once, over one connection to each."""
    client = shards.client

    async def main() -> None:
        pushes = [client.apush({**JOB, "queue": name}) for name in ("mail", "default") * 50]
        assert len(set(await asyncio.gather(*pushes))) == 100
        await client.apush({**JOB, "queue": "mail", "at": 4e9})
        await client.apush_bulk({**JOB, "queue": "mail", "args": [[1], [2]]})
        await client.aclose()

    run(main())
    assert sizes(shards, "mail", "default") == [52, 50]
    with contextlib.closing(shards.mail.client()) as mail:
        assert (mail.llen("queue:mail"), mail.zcard("schedule")) == (52, 1)
        assert mail.smembers("queues") == {b"mail"}


@pytest.mark.usefixtures("divided")
def test_a_shard_that_is_down_keeps_no_other_one_from_its_awaited_jobs(shards: TwoShards) -> None:
    """The error has the jids of all shards."""
    client = shards.client
    rows = {**JOB, "queue": "default", "args": [[number] for number in range(5)]}

    async def main() -> Any:
        assert len(await client.apush_bulk(rows)) == 5
        await asyncio.to_thread(shards.mail.kill)
        return await ended_by(client.apush_bulk(rows))

    error = asyncio.run(main())
    assert str(error).startswith("shard mail: ")
    assert str(error).endswith("over all shards 3 of 5 jobs were pushed")
    assert (len(error.pushed), error.unknown) == (3, ())
    assert sizes(shards, "default") == [6]


@pytest.mark.usefixtures("divided")
def test_a_push_over_shards_that_is_cancelled_says_what_each_has(shards: TwoShards) -> None:
    """One shard has its jobs, the other one hangs."""
    client = shards.client
    rows = {**JOB, "queue": "default", "args": [[number] for number in range(5)]}

    async def main() -> forkq.PushOutcome | None:
        await client.apush_bulk(rows)
        shards.mail.pause()
        try:
            task = asyncio.create_task(client.apush_bulk(rows))
            await until(lambda: sizes(shards, "default") == [6], "the jobs of the first shard")
            await turns(20)
            task.cancel()
            error = await ended_by(task)  # type: ignore[arg-type]
        finally:
            shards.mail.resume()
        await client.aclose()
        return forkq.push_outcome(error)

    outcome = asyncio.run(main())
    assert outcome is not None
    assert (len(outcome.pushed), len(outcome.unknown)) == (3, 2)
    assert sizes(shards, "mail") == [4]


# A queue that is spread


@pytest.fixture
def spread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spread]:
    monkeypatch.chdir(tmp_path)
    with three_parts(tmp_path) as made:
        yield made


def where(spread: Spread) -> dict[str, str]:
    """The part of each job that waits."""
    return {loads(raw)["jid"]: part for part in PARTS for raw in spread.payloads(part)}


def test_the_jid_of_an_awaited_push_chooses_its_part(spread: Spread, run: Run) -> None:
    client = spread.client

    async def main() -> list[Any]:
        pushes = (client.apush({**SPREAD, "args": [number]}) for number in range(60))
        jids = await asyncio.gather(*pushes)
        jids += await client.apush_bulk({**SPREAD, "args": [[number] for number in range(2500)]})
        await client.aclose()
        return jids

    jids = run(main())
    assert where(spread) == {jid: part_of(PARTS, jid) for jid in jids}


def test_the_parts_that_are_up_take_the_awaited_jobs_of_one_that_is_down(spread: Spread) -> None:
    client = spread.client

    async def main() -> list[Any]:
        await client.apush({**SPREAD, "jid": jids_for("b", 1, "early")[0], "args": []})
        await asyncio.to_thread(spread.servers["b"].kill)
        pushes = (client.apush({**SPREAD, "args": [number]}) for number in range(60))
        jids = await asyncio.gather(*pushes)
        jids += await client.apush_bulk({**SPREAD, "args": [[number] for number in range(600)]})
        await client.aclose()
        return jids

    jids = asyncio.run(main())
    found = {loads(raw)["jid"]: part for part in ("c", "default") for raw in spread.payloads(part)}
    assert set(found) == set(jids)
    assert all(part_of(PARTS, jid) in (part, "b") for jid, part in found.items())


def test_an_awaited_job_that_may_have_arrived_goes_to_no_other_part(spread: Spread) -> None:
    client = spread.client
    first, jid = jids_for("b", 2)

    async def main() -> BaseException:
        await client.apush({**SPREAD, "jid": first, "args": []})
        spread.servers["b"].pause()
        try:
            push = client.apush({**SPREAD, "jid": jid, "args": []})
            task = asyncio.create_task(push)
            await turns(20)
            task.cancel()
            return await ended_by(task)  # type: ignore[arg-type]
        finally:
            spread.servers["b"].resume()
            await client.aclose()

    outcome = forkq.push_outcome(asyncio.run(main()))
    assert outcome == forkq.PushOutcome((), (jid,))
    assert where(spread).get(jid, "b") == "b"
