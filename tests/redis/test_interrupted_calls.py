"""An exception from outside lands in the middle of a call: the next caller gets its own answer.

A time-out's signal handler, Ctrl-C and the stop's Shutdown all raise between any two lines.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from types import FrameType
from typing import Any

import pytest
from redis import Redis

from forkq.child.failure.ends import Ends, OpenEndings, Outcome
from forkq.child.failure.retry import Retry
from forkq.child.fetch.channel import Exchange, FetchChannel
from forkq.child.fetch.leases import Leases
from forkq.client import Client
from forkq.clock.tracking import TrackingConnection
from forkq.config.capsule import Capsule
from forkq.runtime.log import logger
from forkq.store.connection import ConnectionLost, RedisConnection, ResponseError
from forkq.store.dead_set import DeadSetLimits
from forkq.store.outage import Outage
from forkq.store.scripts import RULES_CHANGE, SET_ADD
from forkq.wire.keys import Keys
from forkq.wire.lease import UnitOfWork
from tests.redis.proxy import Proxy
from tests.support.server import Server
from tests.support.waiting import wait_until

# A socket that was left in the middle of closing is closed by the garbage collector, which says so.
pytestmark = [
    pytest.mark.interrupts,
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
]

# An exception in these may leave a reply unread. While redis-py connects, no reply is due; of its
# functions, forkq then calls that which closes the connection.
FILES = (
    "forkq/store/channel.py",
    "forkq/store/connection.py",
    "forkq/store/pool.py",
    "forkq/store/push_steps.py",
    "forkq/store/redis_py.py",
    "forkq/store/route.py",
    "contextlib.py",
    "child/fetch/channel.py",
)
PARTS = ("disconnect",)
KEYS = Keys()
# Makes commands with numbers, and raises in a signal handler at any moment of it.
NUMBERS = """
import random, signal
from forkq.store.redis_py import pack

class Interrupted(BaseException): pass

def interrupt(number, frame):
    raise Interrupted

signal.signal(signal.SIGALRM, interrupt)
struck = 0
while struck < 2000:
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 30e-6))
        while True:
            pack([("ZADD", "schedule", 1795424346.73, b"{}", 7), ("LPUSH", "queue", "{}")])
    except Interrupted:
        struck += 1
"""


class Interrupted(BaseException):
    """Stands for what a signal handler raises."""


@pytest.fixture(autouse=True)
def nothing_pending() -> None:
    """Delivers an asynchronous exception to this thread.

    One that was taken back, by another test of this process, leaves Python 3.11 with a note that
    one is pending. Then a traced function never gets beyond its first instruction.
    """
    me = ctypes.c_ulong(threading.get_ident())
    with contextlib.suppress(Interrupted):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(me, ctypes.py_object(Interrupted))
        wait_until(lambda: False, what="the exception")


@pytest.fixture
def client(redis: Redis, redis_server: Server) -> Iterator[Client]:
    for size, queue in enumerate(("one", "two", "three"), 1):
        redis.rpush(f"queue:{queue}", *range(size))
    client = Client(redis_server.url)
    yield client
    client.close()


def interrupted_at(step: int, act: Callable[[], object]) -> bool:
    """Whether ``act`` was interrupted, at its ``step``-th line.

    It runs in a thread of its own: an exception that is raised at the end of an ``except`` block
    stays this thread's handled exception, and would be the context of all later ones.
    """
    left = step

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        code = frame.f_code
        if not code.co_filename.endswith(FILES) and code.co_name not in PARTS:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                raise Interrupted
        return trace

    def run() -> None:
        sys.settrace(trace)
        try:  # not contextlib.suppress: that module is traced
            act()
        except Interrupted:
            pass
        finally:
            sys.settrace(None)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return left < 0  # also if the exception was lost in a destructor


def interrupted_everywhere(act: Callable[[], object], check: Callable[[], None]) -> None:
    """Interrupts ``act`` at each of its lines in turn, and calls ``check`` after each."""
    act()
    step = 0
    while interrupted_at(step, act):
        check()
        step += 1
    assert step > 20, "the trace saw nothing"


def _call(client: Client) -> None:
    with client.connection() as connection:
        connection.call("LLEN", "queue:one")


def _pipeline(client: Client) -> None:
    with client.connection() as connection:
        connection.pipeline([("LLEN", "queue:one"), ("LLEN", "queue:two")])


def _script(client: Client) -> None:
    with client.connection() as connection:
        connection.script(SET_ADD, ("paused",), ("one",))


def _unknown_script(client: Client) -> None:
    with client.connection() as connection:
        connection.call("SCRIPT", "FLUSH")
        connection.script(
            RULES_CHANGE, ("forkq:controlled", "{queue:one}:control"), ("one", "limit", "5")
        )


def _refused(client: Client) -> None:
    with client.connection() as connection:
        connection.pipeline([("GET", "queue:one"), ("LLEN", "queue:one")])


def _push(client: Client) -> None:
    client.push({"class": "MyJob", "args": []})


def _push_bulk(client: Client) -> None:
    client.push_bulk({"class": "MyJob", "args": [[1], [2]], "queue": "bulk", "at": [60, 0]})


@pytest.mark.parametrize(
    "act", [_call, _pipeline, _script, _unknown_script, _refused, _push, _push_bulk]
)
def test_a_call_that_is_interrupted_at_any_line_leaves_no_reply_to_the_next(
    client: Client, act: Callable[[Client], None]
) -> None:
    def check() -> None:
        with client.connection() as connection:
            assert connection.call("LLEN", "queue:three") == 3

    interrupted_everywhere(lambda: act(client), check)


@pytest.mark.parametrize("kind", [RedisConnection, TrackingConnection])
def test_a_connection_without_a_pool_gives_its_own_answer_or_none(
    redis: Redis, redis_server: Server, kind: type[RedisConnection]
) -> None:
    """As the heartbeat, the rescue and the clock have one: never in a pool."""
    redis.rpush("queue:three", 1, 2, 3)
    connection = kind(redis_server.url)

    def track_and_ask() -> None:
        connection.connect()
        connection.track()
        connection.pipeline([("CLIENT", "CACHING", "YES"), ("GET", "news")])
        connection.wait(0)
        connection.call("LLEN", "queue:one")

    def check() -> None:
        try:
            connection.connect()
            assert connection.call("LLEN", "queue:three") == 3
        except ConnectionLost:
            assert not connection.connected

    interrupted_everywhere(track_and_ask, check)
    connection.close()


def test_a_fetch_that_is_interrupted_is_never_answered_by_another_ones_reply(
    redis: Redis, redis_server: Server
) -> None:
    capsule = Capsule("default", queues=(("one", 0), ("tenant-*", 0)))
    connection = RedisConnection(redis_server.url)
    fetches = FetchChannel(capsule, "host:1:abc", Keys(""), connection, logger())
    leases = Leases(1, OpenEndings(logger(), Outage(logger())))
    fetched: list[bytes] = []

    def fetch() -> None:
        fetches.open()
        fetches.send(1, leases)
        fetched.extend(unit.payload for unit in fetches.receive().units)

    def check() -> None:
        redis.delete("{queue:one}:inflight", "queue:one")
        redis.rpush("queue:one", "mine")
        if fetches.under_way is not None:
            fetches.disconnect(leases)
        try:
            fetches.open()
            fetches.send(1, leases)
            assert [unit.payload for unit in fetches.receive().units] == [b"mine"]
        except (*ConnectionLost, ResponseError):  # as the fetcher does after any failure
            fetches.disconnect(leases)

    redis.sadd("queues", "one", "tenant-a")
    interrupted_everywhere(fetch, check)
    fetches.disconnect(leases)


def test_an_interrupted_exchange_forgets_no_end(redis: Redis, redis_server: Server) -> None:
    """Of one job that is done, and one that is to be tried again: its processor waits for that."""
    ends, log = Ends("host:1:abc", KEYS, DeadSetLimits(KEYS)), logger()
    connection = RedisConnection(redis_server.url)
    fetches = FetchChannel(Capsule("default", (("one", 0),)), "host:1:abc", KEYS, connection, log)
    leases = Leases(2, OpenEndings(log, Outage(log)))
    told: list[Outcome] = []

    def exchange(want: int) -> Exchange:
        """As the fetcher does."""
        fetches.open()
        fetches.send(want, leases)
        sent = fetches.under_way
        assert sent is not None
        try:
            return fetches.receive()
        finally:
            leases.settle([ending for ending in sent.sent.endings if ending.reply is not None])

    def end_two() -> None:
        redis.lpush("queue:one", "done", "failed")
        done, failed = exchange(2).units
        leases.add([done, failed])
        place: deque[UnitOfWork] = deque()
        deque(islice(leases.taker(place), 2))
        leases.end(done)
        ending = ends.retry(failed, Retry(5.5, b"again"))
        ending.told = told.append
        leases.end(failed, ending)

    def check() -> None:
        fetches.disconnect(leases)
        exchange(0)
        assert (redis.hlen("{queue:one}:inflight"), told) == (0, ["moved"])
        assert leases.count().running == 0
        told.clear()
        end_two()

    end_two()
    interrupted_everywhere(lambda: exchange(0), check)
    fetches.disconnect(leases)


def test_time_outs_by_signal_never_mix_up_answers(client: Client, redis_server: Server) -> None:
    """What an app does that bounds its calls with SIGALRM: 1 ms there and back, up to 2 ms time."""
    assert threading.current_thread() is threading.main_thread()

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    def size(queue: str) -> int:
        with through.connection() as connection:
            return int(connection.call("LLEN", f"queue:{queue}"))

    sizes = {"one": 1, "two": 2, "three": 3}
    wrong, interrupted = [], 0
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with Proxy(redis_server.port, delay=0.001) as proxy:
            through = Client(proxy.url)
            for turn in range(800):
                queue = random.choice(list(sizes))
                try:
                    signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0005, 0.002))
                    found = size(queue)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except Interrupted:
                    interrupted += 1
                else:
                    if found != sizes[queue]:
                        wrong.append((turn, queue, found))
            through.close()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert wrong == []
    assert interrupted > 50


def test_a_signal_handler_that_raises_while_a_command_is_made_does_not_end_the_process() -> None:
    """As Ctrl-C, ``signal.alarm`` and pytest-timeout do."""
    subprocess.run([sys.executable, "-c", NUMBERS], check=True, timeout=60)
