"""A shop's busy hour in Redis, as heartbeats and pushes write it: for pictures of the pages."""

from __future__ import annotations

import json
import math
import time
from datetime import datetime, timedelta, timezone
from typing import Any

from redis import Redis

import forkq
from forkq import default_client
from forkq.store.deploys import mark

_CLASSES = ("Thumbnail", "SendMail", "Invoice", "SyncStock")
_HOSTS = {"web-1": (312, 313, 314), "web-2": (77, 78)}
_WAITING = {"mail": (1214, 724), "reports": (14, 95), "exports": (3, 40), "default": (27, 2.4)}
_QUEUES = ["critical", "default", "mail", "exports"]

_ERRORS = (
    ("Timeout", "the mail server did not answer within 10 s"),
    ("KeyError", "'unit_price'"),
    ("PIL.UnidentifiedImageError", "cannot identify image file '/data/in/7021.heic'"),
)
_BACKTRACE = [
    "/srv/shop/thumbnails.py:41:in scaled",
    "/srv/shop/thumbnails.py:18:in perform",
    "/srv/shop/.venv/lib/python3.12/site-packages/PIL/Image.py:3498:in open",
]


def shop(redis: Redis) -> None:
    """Fills the data of the process's client."""
    _history(redis)
    _minutes(redis)
    for queue, (count, waits) in _WAITING.items():
        for number in range(count):
            _push(redis, queue, number, waits * (1 - number / count))
    redis.sadd("queues", "critical")
    forkq.api.Queue("mail").limit = 6
    forkq.api.Queue("exports").pause()
    for host, pids in _HOSTS.items():
        for at, pid in enumerate(pids):
            _process(redis, host, pid, busy=(5, 3, 4)[at])
    _failed(redis)
    add_batch(redis, "shopbatch", "Invoices of April", 12, "open")
    redis.set("forkq:leader", "web-1:312:f00")
    client = default_client.default()
    with client.connection() as connection:
        mark(connection, client.keys, "4f21aae Thumbnails without copies", time.time() - 22 * 60)


def add_batch(redis: Redis, bid: str, name: str, members: int, state: str) -> None:
    """A batch with dead and failing members, within another one."""
    now = time.time()
    facts: dict[Any, Any] = {
        "name": name,
        "state": state,
        "at": now - 7200,
        "pushed_at": now - 7000,
        "fired_d": now,
        "total": members,
        "done": members // 2,
        "dead": 2,
        "other": 1,
        **{f"{kind}:{n}": f"{n:024x}" for kind in ("dead", "failing") for n in range(2)},
    }
    above = f"{bid}-above"
    redis.hset(f"forkq:batch:{bid}", mapping={**facts, "parent": above})
    redis.hset(f"forkq:batch:{above}", mapping={**facts, "child:0": f"forkq:batch:{bid}"})
    redis.zadd("forkq:batches", {f"forkq:batch:{one}": now for one in (bid, above)})


def _push(redis: Redis, queue: str, number: int, waits: float) -> None:
    """Queued ``waits`` seconds ago; a push would say now."""
    redis.sadd("queues", queue)
    redis.lpush(f"queue:{queue}", json.dumps(_job(queue, number, time.time() - waits)))


def _job(queue: str, number: int, at: float) -> dict[str, Any]:
    stamp = int(at * 1000)
    argument = {"order": 70_000 + number, "to": "ann@example.org", "api_token": "t0p"}
    return {
        "class": _CLASSES[number % 4], "args": [argument], "jid": f"{number * 7919**5:024x}"[-24:],
        "queue": queue, "created_at": stamp, "enqueued_at": stamp, "retry": True,
    }  # fmt: skip


def _failed(redis: Redis) -> None:
    """Retrying, dead and scheduled jobs, each with what it failed with."""
    now = time.time()
    for number in range(40):
        at = now - number * 1700 - 40
        more: dict[str, Any] = {"jid": f"dead-{number}", "retry_count": 24} if number % 3 else {}
        error, message = _ERRORS[number % 3]
        job = _job(_QUEUES[number % 4], number, at - 90)
        failed = {
            "error_class": error, "error_message": message, "failed_at": int(at * 1000),
            "retry_count": number % 5, "error_backtrace": _BACKTRACE, **more,
        }  # fmt: skip
        place, score = ("dead", at) if more else ("retry", now + 60 * number + 15)
        redis.zadd(place, {json.dumps({**job, **failed}): score})
        later = {**_job("reports", number, now), "jid": f"later-{number}"}
        redis.zadd("schedule", {json.dumps(later): now + 600 * number + 90})


def _history(redis: Redis) -> None:
    today = datetime.now(timezone.utc).date()
    for back in range(90):
        day, week = today - timedelta(days=back), math.sin(back / 7 * 2 * math.pi)
        redis.set(f"stat:processed:{day}", int(48_000 + 14_000 * week + 37 * (back * 7919 % 101)))
        redis.set(f"stat:failed:{day}", 300 + back * 7919 % 997 + (4000 if back == 12 else 0))
    redis.set("stat:processed", 4_230_012)
    redis.set("stat:failed", 51_904)


def _minutes(redis: Redis) -> None:
    now = datetime.now(timezone.utc)
    for back in range(62):
        minute = now - timedelta(minutes=back)
        key = f"j|{minute:%y%m%d}|{minute.hour}:{minute:%M}"
        for at, job in enumerate(_CLASSES):
            done = int(130 + 45 * math.sin(back / 9 + at) + back * 7919 % (17 + at))
            failed = 34 - 4 * (21 - back) if 14 < back <= 21 and at == 0 else back * 31 % (at + 2)
            row = {
                f"{job}|p": done,
                f"{job}|f": failed,
                f"{job}|ms": done * (520, 900, 1900, 4100)[at],
            }
            redis.hset(key, mapping={name: int(value) for name, value in row.items()})
            times = f"h|{job}-{minute.day}-{minute.hour}:{minute.minute}"
            slower = at == 0 and back < 22
            for step, share in enumerate((0.1, 0.45, 0.3, 0.1, 0.04, 0.01)):
                bucket = 6 + 2 * at + step + 2 * slower
                redis.bitfield(times).set("u16", f"#{bucket}", round(done * share)).execute()


def _process(redis: Redis, host: str, pid: int, busy: int) -> None:
    identity, now = f"{host}:{pid}:f00", time.time()
    info = {
        "hostname": host, "pid": pid, "tag": "shop", "queues": _QUEUES, "concurrency": 5,
        "started_at": now - 5000 - pid, "labels": [], "identity": identity, "version": "1.0",
    }  # fmt: skip
    record: Any = {
        "info": json.dumps(info), "concurrency": 5, "busy": busy, "beat": now - pid % 7,
        "quiet": "false", "rss": 84_000 + 70 * pid, "rtt_us": 300 + pid,
    }  # fmt: skip
    redis.sadd("processes", identity)
    redis.hset(identity, mapping=record)
    redis.expire(identity, 60)
    for thread in range(busy):
        work = _work(pid, thread, now)
        redis.hset(f"{identity}:work", f"t{thread}", json.dumps(work))
        inflight = f"{{queue:{work['queue']}}}:inflight"
        redis.hset(inflight, f"{identity}/{thread}", work["payload"])
    redis.expire(f"{identity}:work", 60)


def _work(pid: int, thread: int, now: float) -> dict[str, Any]:
    number = pid * 10 + thread
    queue = _QUEUES[number % 4]
    job = _job(queue, number, now - 200)
    work: dict[str, Any] = {
        "queue": queue,
        "payload": json.dumps(job),
        "run_at": int(now - number * 7919 % (40 if thread == 1 else 6)),
    }
    if number % 3 == 0:
        work["progress"] = {"done": 40 + number % 50, "total": 120, "note": "rows", "at": now}
    return work
