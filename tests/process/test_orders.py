"""The order of docs/steps.md in a whole tree: each order's process is killed once, at any line."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from redis import Redis

import forkq
from tests.support.server import Server
from tests.support.tree import StartTree
from tests.support.waiting import wait_until

# A run counts the lines that its thread executes in forkq and in the app, up to the end of the job
# and beyond, and the process kills itself at the line that the ledger says.
APP = """
import os, signal, sys
import forkq
from redis import Redis

notes = Redis.from_url(os.environ["NOTES_URL"])
PLACES = (os.path.dirname(forkq.__file__), __file__)

def watch(order):
    run = notes.hincrby("runs", order, 1)
    line = notes.hget(f"kill:{run}", order)
    sys.settrace(None if line is None else Killer(order, int(line)).enter)

class Killer:
    def __init__(self, order, left):
        self.order, self.left = order, left

    def enter(self, frame, event, value):
        return self.step if frame.f_code.co_filename.startswith(PLACES) else None

    def step(self, frame, event, value):
        self.left -= event == "line"
        if self.left == 0:
            place = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
            notes.hset("killed", self.order, place)
            os.kill(os.getpid(), signal.SIGKILL)
        return self.step

def effect(what, order):
    notes.rpush("effects", f"{what}:{order}")
    notes.hsetnx("paid", forkq.step.key, order)  # a provider that knows the key
    return f"{what}-{order}"

@forkq.job(name="order", retry=3, crashes=5)
def order(number):
    watch(number)
    receipt = forkq.step("charge", effect, "charge", number)
    approval = forkq.wait_for("approved", key=number, timeout=3 * 86400)
    assert receipt == f"charge-{number}" and approval.data == {"of": number}
    forkq.step("ship", effect, "ship", number)
"""
# One order at a time runs in a child: a kill strikes that one alone.
# About how many lines the first run executes, until it waits, and the second one.
LINES = (700, 500)


@pytest.mark.parametrize("orders", [4, pytest.param(200, marks=pytest.mark.slow)])
def test_an_order_that_is_killed_once_is_charged_once_and_shipped(
    redis_server: Server, redis: Redis, own_server: Server, tree: StartTree, orders: int
) -> None:
    """Each effect happens at most twice, and once by the key of its step."""
    chosen, ledger = random.Random(33), own_server.client()
    for number in range(orders):
        run = 1 + number % 2
        ledger.hset(f"kill:{run}", str(number), chosen.randrange(1, LINES[run - 1]))
    client = forkq.Client(redis_server.url)
    before = forkq.default_client.swap(client)
    forkq_tree = tree(
        redis_server, app=APP, args=["-c", "1", "--workers", "2"], env={"NOTES_URL": own_server.url}
    )
    try:
        client.push_bulk({"class": "order", "args": [[number] for number in range(orders)]})
        for number in range(0, orders, 2):  # some wait already, and some will not
            assert forkq.signal("approved", key=number, data={"of": number})
        wait_until(
            lambda: (
                redis.zcard("schedule") == orders // 2 and ledger.hlen("paid") == 3 * orders // 2
            ),
            deadline=60 + 10 * orders,
            what="the others to wait",
        )
        for number in range(1, orders, 2):
            assert forkq.signal("approved", key=number, data={"of": number})
        wait_until(
            lambda: (
                ledger.hlen("paid") == 2 * orders
                and not redis.exists("schedule", "queue:default", "{queue:default}:inflight")
                and not redis.exists("{queue:default}:suspects")
            ),
            deadline=60 + 10 * orders,
            what="all orders",
        )
    finally:
        forkq.default_client.swap(before)
        client.close()
    effects: Any = ledger.lrange("effects", 0, -1)
    killed: Any = ledger.hgetall("killed")
    counts = Counter(effects)
    names = [f"{what}:{number}" for what in ("charge", "ship") for number in range(orders)]
    assert counts.keys() == {name.encode() for name in names}
    assert max(counts.values()) <= 2
    twice = {name.rpartition(b":")[2] for name, count in counts.items() if count > 1}
    assert twice <= killed.keys()
    assert len(killed) >= orders // 2, f"only {killed} were killed: {forkq_tree.log_text()[-2000:]}"
    assert redis.zcard("dead") == 0
    assert not redis.keys("forkq:steps:*")
