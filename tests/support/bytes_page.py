"""What a job takes in Redis, by feature: measured on a real server, 10,000 jobs of each kind.

``python -m tests.support.bytes_page`` measures, and writes the table into docs/scale.md. A test
measures again, and compares (tests/redis/test_bytes.py). A feature is one more ``Kind`` in KINDS.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from redis import Redis

import forkq
from forkq import default_client, registry
from forkq.child.failure.ends import Ends
from forkq.child.failure.retry import Sleeps
from forkq.child.failure.steps import save_call
from forkq.features.iterable.parts import KEPT_FOR, Iteration
from forkq.features.steps import parts as steps
from forkq.store.connection import RedisConnection
from forkq.store.dead_set import DeadSetLimits
from forkq.store.scripts import CURSOR_SAVE, Call
from forkq.wire.keys import Keys
from forkq.wire.lease import UnitOfWork, lease
from forkq.wire.payload import dumps, new_jids
from tests.support.documents import ROOT
from tests.support.server import Server
from tests.support.waiting import wait_until

PAGE: Final = ROOT / "docs" / "scale.md"
JOBS: Final = 10_000
_BLOCK: Final = re.compile(
    r"(<!-- Made by [^>]*bytes_page[^>]*-->\n)\n(.*?)\n\n(<!-- end -->)", re.S
)
_KEYS: Final = Keys()
_ENDS: Final = Ends("vm:7:0123456789ab", _KEYS, DeadSetLimits(_KEYS))


class Kind(NamedTuple):
    """Jobs of one kind. ``fill`` brings so many to a server; ``beside``: the kind of plain job that
    they are compared with."""

    name: str
    fill: Callable[[Server, int], None]
    beside: str


def _pushed(times: int = 1, **options: Any) -> Callable[[Server, int], None]:
    """Pushes jobs with these options, so many times each."""

    def fill(server: Server, count: int) -> None:
        client = forkq.Client(server.url)
        rows = [[number] for number in range(count)]
        for _ in range(times):
            client.push_bulk({"class": "Resize", "args": rows, **options})
        client.close()

    return fill


# What a job that runs does next: of its unit, its jid and its payload.
_Next: TypeAlias = Callable[[UnitOfWork, str, dict[str, Any]], Call]


def _leased(then: _Next | None = None) -> Callable[[Server, int], None]:
    """Jobs that run, and may have done something."""

    def fill(server: Server, count: int) -> None:
        connection = RedisConnection(server.url)
        connection.connect()
        plain = {"retry": True, "queue": "default", "class": "Resize", "created_at": 1.5e9 + 0.25}
        leased = _KEYS.inflight("default")
        for number, jid in enumerate(new_jids(count)):
            job = {**plain, "args": [number], "jid": jid, "enqueued_at": 1.5e9 + 0.25}
            raw = dumps(job)
            calls: list[Any] = [("HSET", leased, lease(_ENDS.identity, number), raw)]
            if then is not None:
                calls.append(then(UnitOfWork(1, "default", number, raw), jid, job))
            connection.exchange(calls)
        connection.close()

    return fill


def _cursor(unit: UnitOfWork, jid: str, job: dict[str, Any]) -> Call:
    names = (_KEYS.inflight("default"), _KEYS.iteration(jid), _KEYS.marked)
    marked = dumps({**job, "forkq": {"v": 2, "needs": {"cursor": 1}}})
    saved = (lease(_ENDS.identity, unit.sequence), "default", marked, len(unit.payload), KEPT_FOR)
    reached = Iteration(1, 123_456, 12.5, items=123_456, place=(123_456, 500_000)).fields()
    return Call(CURSOR_SAVE, names, (*saved, *reached))


def _step(unit: UnitOfWork, jid: str, job: dict[str, Any]) -> Call:
    marked = dumps({**job, "forkq": {"v": 7, "needs": {"steps": True}}})
    what = (steps.done(123_456), steps.done_without_value())
    return save_call(_ENDS, unit, jid, marked, len(unit.payload), "charge", *what)


def _wait(unit: UnitOfWork, jid: str, job: dict[str, Any]) -> Call:
    kept = steps.pause(f"approved:{jid}", 4e9, f"approved:{jid}")
    marks = {"v": 7, "needs": steps.waiting_for({"steps": True}, kept)}
    unit.marked = {"class": "Resize", "jid": jid, "queue": "default", "forkq": marks}
    raw = dumps({**job, "forkq": marks})
    call: Call = _ENDS.retry(unit, Sleeps(4e9, raw, "Resize", kept, jid)).call()
    return call


def _in_batch(server: Server, count: int) -> None:
    client = forkq.Client(server.url)
    before = default_client.swap(client)
    try:
        with forkq.Batch("sizes"):
            client.push_bulk({"class": "Resize", "args": [[number] for number in range(count)]})
    finally:
        default_client.swap(before)
        client.close()


def _in_flow(server: Server, count: int) -> None:
    """Each step but the first one waits."""
    client = forkq.Client(server.url)
    before, registered = default_client.swap(client), dict(registry._jobs)
    try:
        job = forkq.job(name="Resize")(lambda number: None)
        for first in range(0, count, 5000):
            group = forkq.group(*(job.s(first + number) for number in range(min(5000, count))))
            forkq.Flow("sizes", job.s(0) | group).push()
    finally:
        registry._jobs.clear()
        registry._jobs.update(registered)
        default_client.swap(before)
        client.close()


def _cancelled(server: Server, count: int) -> None:
    _pushed()(server, count)
    redis = Redis.from_url(server.url)
    found: Any = redis.lrange("queue:default", 0, -1)
    jids = [jid.decode() for raw in found for jid in _JID.findall(raw)]
    redis.hset(_KEYS.cancelled, mapping={f"jid:{jid}": "1795000000.123456" for jid in jids})
    redis.close()


_JID: Final = re.compile(rb'"jid":"([0-9a-f]+)"')
_WAITS, _LATER, _RUNS = (
    "a plain job that waits in its queue",
    "one that is scheduled",
    "one that runs",
)
KINDS: Final = (
    Kind(_WAITS, _pushed(), _WAITS),
    Kind(_LATER, _pushed(at=4e9), _WAITS),
    Kind(_RUNS, _leased(), _RUNS),
    Kind("`expires_in=600`", _pushed(expires_in=600), _WAITS),
    Kind("`unique_for=3600`", _pushed(unique_for=3600), _WAITS),
    Kind('`on_duplicate="latest"`', _pushed(unique_for=3600, on_duplicate="latest"), _WAITS),
    Kind(
        "the same, and a newer one waits in its lock",
        _pushed(2, unique_for=3600, on_duplicate="latest"),
        _WAITS,
    ),
    Kind("`debounce=5`", _pushed(debounce=5), _LATER),
    Kind("`once=True`, for a day", _pushed(once=True), _WAITS),
    Kind("`result_ttl=60`, until it has ended", _pushed(result_ttl=60), _WAITS),
    Kind('`throttle="3/minute"`, for a minute', _pushed(throttle="3/minute"), _WAITS),
    Kind("a member of a batch", _in_batch, _WAITS),
    Kind("a step of a flow, until it starts", _in_flow, _WAITS),
    Kind("an iterable job that has saved its cursor", _leased(_cursor), _RUNS),
    Kind("a job that has remembered a step", _leased(_step), _RUNS),
    Kind("a job that waits for a signal of its own", _leased(_wait), _LATER),
    Kind("cancelled, until it has ended", _cancelled, _WAITS),
)  # fmt: skip


def measured(server: Server, kinds: tuple[Kind, ...] = KINDS, jobs: int = JOBS) -> dict[str, float]:
    """The bytes that one job of each kind takes on this server, which no other program uses."""
    return {kind.name: _bytes_of(kind, server, jobs) for kind in kinds}


def _bytes_of(kind: Kind, server: Server, jobs: int) -> float:
    redis = server.client()
    redis.ping()
    clients = _connected(redis)
    kind.fill(server, 10)  # the server learns the scripts
    redis.flushall()
    before = _used(redis, clients)
    kind.fill(server, jobs)
    return (_used(redis, clients) - before) / jobs


def _used(redis: Redis, clients: int) -> int:
    """The memory of the server, once it has no more clients than these: each has buffers there."""
    wait_until(lambda: _connected(redis) <= clients, what="the end of all other connections")
    found: Any = redis.info("memory")
    return int(found["used_memory"])


def _connected(redis: Redis) -> int:
    found: Any = redis.info("clients")
    return int(found["connected_clients"])


def table(found: Mapping[str, float]) -> str:
    """The table, in tens of bytes."""
    lines = ["| job | bytes | more than a plain one |", "|---|---|---|"]
    for kind in KINDS:
        more = _rounded(found[kind.name]) - _rounded(found[kind.beside])
        shown = "" if kind.name == kind.beside else f"{more:+}"
        lines.append(f"| {kind.name} | {_rounded(found[kind.name])} | {shown} |")
    return "\n".join(lines)


def _rounded(size: float) -> int:
    return round(size / 10) * 10


def documented() -> dict[str, int]:
    """The bytes by kind, as the page has them."""
    [(_, rows, _)] = _BLOCK.findall(PAGE.read_text())
    return {name: int(size) for name, size in re.findall(r"^\| (.+?) \| (\d+) \|", rows, re.M)}


def page(found: Mapping[str, float]) -> str:
    """The text of the page with this table."""
    text, blocks = _BLOCK.subn(
        lambda one: f"{one[1]}\n{table(found)}\n\n{one[3]}", PAGE.read_text()
    )
    assert blocks == 1, f"{PAGE} has {blocks} places for the table"
    return text


if __name__ == "__main__":
    with_server = Server().start()
    PAGE.write_text(page(measured(with_server)))
    with_server.close()
