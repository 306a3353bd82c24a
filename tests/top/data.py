"""What stands in Redis for the screen to show."""

from __future__ import annotations

import json
import time
from typing import Any

from redis import Redis

WHO = "web-1:312:f00"


def job(jid: str, name: str = "Mail", **fields: Any) -> bytes:
    """A payload."""
    stamp = int(time.time() * 1000)
    job = {
        "class": name, "args": [{"to": "ann", "password": "s3cret"}], "jid": jid,
        "queue": "default", "retry": True, "created_at": stamp,
    }  # fmt: skip
    return json.dumps({**job, **fields}).encode()


def failed(jid: str, name: str = "Mail", **fields: Any) -> bytes:
    """A payload of a job that has failed."""
    error = {
        "error_class": "Timeout", "error_message": "no answer", "retry_count": 2,
        "failed_at": int(time.time() * 1000) - 60_000,
        "error_backtrace": ["/srv/shop/mail.py:7:in perform"],
    }  # fmt: skip
    return job(jid, name, **{**error, **fields})


def queued(redis: Redis, queue: str, *payloads: bytes) -> None:
    redis.sadd("queues", queue)
    for payload in payloads:
        redis.lpush(f"queue:{queue}", payload)


def retrying(redis: Redis, *payloads: bytes) -> None:
    for number, payload in enumerate(payloads):
        redis.zadd("retry", {payload: time.time() + 600 + number})


def dead(redis: Redis, *payloads: bytes) -> None:
    for number, payload in enumerate(payloads):
        redis.zadd("dead", {payload: time.time() - 600 - number})


def process(redis: Redis, *running: bytes, cpu: float = 42.0, **progress: Any) -> None:
    """A child of web-1 that runs these jobs, as its heartbeat says it."""
    now = time.time()
    info = {
        "hostname": "web-1", "pid": 312, "tag": "shop", "queues": ["default", "mail"],
        "concurrency": 5, "started_at": now - 500, "labels": [], "identity": WHO,
        "version": "forkq 1.0", "capsules": {"default": {}}, "master": 311,
    }  # fmt: skip
    record: Any = {
        "info": json.dumps(info), "concurrency": 5, "busy": len(running), "beat": now,
        "quiet": "false", "rss": 84 << 10, "rtt_us": 300, "cpu": cpu,
    }  # fmt: skip
    redis.sadd("processes", WHO)
    redis.hset(WHO, mapping=record)
    redis.set("forkq:leader", WHO)
    for number, payload in enumerate(running):
        work: dict[str, Any] = {
            "queue": "default", "payload": payload.decode(), "run_at": int(now) - 30,
        }  # fmt: skip
        if progress:
            work["progress"] = {"at": now, "note": "", "total": None, **progress}
        redis.hset(f"{WHO}:work", f"t{number}", json.dumps(work))
        redis.hset("{queue:default}:inflight", f"{WHO}/{number}", payload)
