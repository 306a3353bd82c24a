"""A fleet at its largest in Redis, as heartbeats and pushes write it: for the layout of the pages.

A million jobs in one queue, a thousand queues and processes, names without a space in them, and
numbers of twelve digits. Keys are real; most jobs of a list are written by one script.
"""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from redis import Redis

import forkq
from tests.web.scenario import add_batch

MILLION: Final = 1_000_000
MANY: Final = 1_000  # queues, and processes
LONG: Final = "a_queue_whose_name_says_all_that_it_is_for_" + "and_more_" * 17 + "end"
CLASS: Final = "warehouse.inventory.synchronisation." + "VeryLongNamedJob" * 10 + ".Work"
HUGE: Final = 123_456_789_012
_SHOWN: Final = 120  # jobs of a list that are whole: those of the first pages
_AT_ONCE: Final = 25_000  # jobs that one script writes: a few milliseconds
_FAILED: Final = 20_000  # members of the sets
_ERROR: Final = "warehouse.errors." + "UnexpectedAnswerOfTheOtherSide" * 6
_JID: Final = "{:024x}"

# ARGV: what stands in the list, how often.
_PUSH: Final = """
local many = {}
for i = 1, 5000 do many[i] = ARGV[1] end
for _ = 1, ARGV[2] / 5000 do redis.call('LPUSH', KEYS[1], unpack(many)) end
"""
# ARGV: a job with a %d for its number, how many, the first score, the step to the next.
_ADD: Final = """
for i = 1, ARGV[2] do
  redis.call('ZADD', KEYS[1], ARGV[3] + i * ARGV[4], (ARGV[1]:gsub('%%d', i, 1)))
end
"""


def at_scale(redis: Redis, many: int = MANY) -> None:
    """Fills the data of the process's client: so many queues and processes."""
    now = time.time()
    _queues(redis, now, many)
    _processes(redis, now, many)
    _sets(redis, now)
    _figures(redis)
    add_batch(redis, "scalebatch", LONG, 987_654_321_012, "broken")


def _queues(redis: Redis, now: float, many: int) -> None:
    for queue, count in (("mail", MILLION), (LONG, 25_000)):
        redis.lpush(f"queue:{queue}", *(_job(queue, CLASS, now - 9000, n) for n in range(_SHOWN)))
        for _ in range(0, count, _AT_ONCE):
            redis.eval(_PUSH, 1, f"queue:{queue}", _job(queue, "Mail", now - 9, _SHOWN), _AT_ONCE)
    names = [f"tenant-{number:04}" for number in range(many)]
    redis.sadd("queues", "mail", LONG, *names)
    with redis.pipeline() as pipe:
        for number, name in enumerate(names):
            pipe.lpush(f"queue:{name}", _job(name, "Report", now - 3 - number / 200, number))
        pipe.execute()
    for name in ("mail", LONG):
        forkq.api.Queue(name).limit = 250_000
    forkq.api.Queue(LONG).pause()


def _job(queue: str, job: str, at: float, number: int | str, **more: Any) -> str:
    stamp, jid = int(at * 1000), _JID.format(number) if isinstance(number, int) else number
    argument = {"order": 70_000, "path": "" if number == _SHOWN else "/srv/" + "x" * 150}
    payload = {"class": job, "args": [argument], "jid": jid, "queue": queue, "retry": True}
    return json.dumps({**payload, "created_at": stamp, "enqueued_at": stamp, **more})


def _sets(redis: Redis, now: float) -> None:
    failed = {
        "error_class": _ERROR, "error_message": "no answer from /srv/" + "y" * 180,
        "retry_count": 3, "failed_at": int(now * 1000),
    }  # fmt: skip
    later = _job(LONG, CLASS, now, "job-%d")
    broken = _job(LONG, CLASS, now, "job-%d", **failed)
    redis.eval(_ADD, 1, "schedule", later, _FAILED, now, 60)
    redis.eval(_ADD, 1, "retry", broken, _FAILED, now, 60)
    redis.eval(_ADD, 1, "dead", broken, _FAILED, now, -60)


def _figures(redis: Redis) -> None:
    redis.set("stat:processed", HUGE)
    redis.set("stat:failed", HUGE)
    now = datetime.now(timezone.utc)
    for back in range(60):
        minute = now - timedelta(minutes=back)
        row = {"p": HUGE // 60, "f": HUGE // 600, "ms": HUGE}
        names: Any = {f"{job}|{field}": n for job in ("Mail", CLASS) for field, n in row.items()}
        redis.hset(f"j|{minute:%y%m%d}|{minute.hour}:{minute:%M}", mapping=names)
        times = f"h|{CLASS}-{minute.day}-{minute.hour}:{minute.minute}"
        redis.bitfield(times).set("u16", "#12", 900).execute()
    for back in range(30):
        day = now.date() - timedelta(days=back)
        redis.mset({f"stat:processed:{day}": HUGE // 30, f"stat:failed:{day}": HUGE // 300})


def _processes(redis: Redis, now: float, many: int) -> None:
    with redis.pipeline() as pipe:
        for number in range(many):
            host = LONG.replace("_", "-") if number == 0 else f"worker-{number // 20:02}.example"
            identity = f"{host}:{4_000_000 + number}:{number:012x}"
            queues = [LONG, "mail"] if number % 25 < 5 else [f"tenant-{number:04}", "mail"]
            info = {
                "hostname": host, "pid": 4_000_000 + number, "tag": "warehouse", "queues": queues,
                "concurrency": 25, "started_at": now - 90_000, "labels": [], "version": "1.0",
                "identity": identity, "capsules": {"default": {}},
            }  # fmt: skip
            record: Any = {
                "info": json.dumps(info), "concurrency": 25, "busy": 1, "beat": now,
                "quiet": "false", "rss": 84_000_000, "rtt_us": 123_456,
            }  # fmt: skip
            pipe.sadd("processes", identity)
            pipe.hset(identity, mapping=record)
            pipe.expire(identity, 600)
            job = _job(queues[0], CLASS if number % 2 else "Mail", now - 400, f"run-{number}")
            progress = {"done": HUGE, "total": HUGE * 2, "note": "rows_of_" + "z" * 60, "at": now}
            work = {"queue": queues[0], "payload": job, "run_at": int(now - number)}
            pipe.hset(f"{identity}:work", "t0", json.dumps({**work, "progress": progress}))
            pipe.hset(f"{{queue:{queues[0]}}}:inflight", f"{identity}/0", job)
            pipe.expire(f"{identity}:work", 600)
        pipe.execute()
