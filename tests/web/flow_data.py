"""Flows in Redis as an app pushes them, with steps that have ended as a child ends them."""

from __future__ import annotations

import json
import time
from typing import Any

from redis import Redis

import forkq
from forkq import api, default_client, registry
from forkq.features.effects import packed
from forkq.features.marked import effects_in
from forkq.store.scripts import EFFECTS_ALONE


def job_of(name: str) -> Any:
    """The job of that name, which nothing runs."""
    registry._jobs.pop(name, None)
    made = forkq.job(name=name)(lambda *_args: None)
    del registry._jobs[name]
    return made


def end_steps(redis: Redis, flow: forkq.Flow, way: str, *names: str) -> list[str]:
    """These steps, which have started, take this way. Returns their jids."""
    found = dict[str, Any]()
    due: Any = redis.zrange("schedule", 0, -1)
    for raw in due:
        need = json.loads(raw).get("forkq", {}).get("needs", {}).get("flow", {})
        if need.get("bid") == flow.bid:
            found[need["step"]] = raw
    for name in names:
        _end(redis, found[name], way)
    return [json.loads(found[name])["jid"] for name in names]


def _end(redis: Redis, raw: bytes, way: str) -> None:
    redis.zrem("schedule", raw)
    if way in ("dead", "retried"):
        place, at = ("dead", time.time()) if way == "dead" else ("retry", time.time() + 600)
        redis.zadd(place, {raw: at})
    keys, names = default_client.default().keys, list[Any]()
    text = packed(effects_in(keys, raw, way), names, keys.totals("ends"))
    api.server().run(EFFECTS_ALONE, names, [text])


def add_flow(redis: Redis, bid: str) -> forkq.Flow:
    """A report of a shop: some steps are done, one is dead, one runs, others wait."""
    download, resize, mail = (job_of(name) for name in ("Download", "Resize", "Mail"))
    flow = forkq.Flow("Report of April")
    flow.bid = bid
    flow.add("download", download.s("https://example.com/"))
    sizes = [f"picture-{number}" for number in range(6)]
    for name in sizes:
        flow.add(name, resize.s(flow.result("download"), 200), after=["download"])
    flow.add("stock", download.s("stock"))
    flow.add("pack", mail.s(forkq.BEFORE), after=sizes)
    flow.add("mail", mail.s(1), after=["pack", "stock"])
    flow.add("archive", mail.s(2), after=["stock"], on_failure="cancel")
    flow.add("alert", mail.s(3), after=["mail", "archive"], on_failure="run")
    flow.push()
    end_steps(redis, flow, "done", "download", "stock")
    end_steps(redis, flow, "done", *sizes[:3])
    end_steps(redis, flow, "dead", sizes[3])
    end_steps(redis, flow, "retried", sizes[4])
    return flow


def add_wide_flow(redis: Redis, bid: str, name: str) -> forkq.Flow:
    """A flow whose names are as long as they may be, with more steps than a picture shows one by
    one."""
    job = job_of("Download")
    flow = forkq.Flow(name)
    flow.bid = bid
    begin = flow.add("b" * 100, job.s(0))
    sides = [flow.add(f"{'s' * 95}-{n}", job.s(n), after=[begin]) for n in range(100)]
    flow.add("e" * 100, job.s(1), after=sides)
    flow.push()
    end_steps(redis, flow, "done", begin)
    redis.zpopmax("dead", len(end_steps(redis, flow, "dead", *sides[:5])))  # for no other page
    return flow
