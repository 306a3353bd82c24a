"""The jobs of the bench of coroutines, which every peer runs, and 32 callers that push. Each peer
imports this in an environment of its own, with httpx and aiohttp.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import bench_jobs

WAIT = 0.1  # seconds that the job sleeps which waits
# Requests at once by httpx, whose default it is. It looks through all of them at each request: with
# 800 at once one took 17 ms of CPU, with 50 some 6 ms, whatever called it.
MOST_HTTPX = 100
CALLERS = 32
HTTP = os.environ.get("BENCH_HTTP", "")

_clients: dict[str, Any] = {}


async def noop() -> None:
    """The job that does nothing."""
    bench_jobs.count()


async def wait() -> None:
    """The job that sleeps."""
    await asyncio.sleep(WAIT)
    bench_jobs.count()


async def hold() -> None:
    """The job whose memory is measured."""
    bench_jobs.count()
    await asyncio.sleep(3600)


async def get_httpx() -> None:
    """A request by httpx, over a client that all jobs of the process share, 100 at a time."""
    import httpx  # noqa: PLC0415 - for the jobs that use it

    if "httpx" not in _clients:
        _clients["httpx"] = httpx.AsyncClient(timeout=60, trust_env=False)
        _clients["gate"] = asyncio.Semaphore(MOST_HTTPX)
    async with _clients["gate"]:
        answer = await _clients["httpx"].get(HTTP)
    answer.raise_for_status()
    bench_jobs.count()


async def get_aiohttp() -> None:
    """A request by aiohttp, over a session that all jobs of the process share."""
    import aiohttp  # noqa: PLC0415 - as above

    if "aiohttp" not in _clients:
        connector = aiohttp.TCPConnector(limit=bench_jobs.CONCURRENCY)
        _clients["aiohttp"] = aiohttp.ClientSession(connector=connector)
    async with _clients["aiohttp"].get(HTTP) as answer:
        answer.raise_for_status()
        await answer.read()
    bench_jobs.count()


JOBS: dict[str, Callable[[], Awaitable[None]]] = {
    "noop": noop, "wait": wait, "hold": hold, "httpx": get_httpx, "aiohttp": get_aiohttp,
}  # fmt: skip


async def callers(push: Callable[[], Awaitable[object]], count: int) -> None:
    """Pushes from 32 coroutines of one loop, one after the other in each. Prints the rate, and for
    how long a push was awaited, in ms."""
    took: list[float] = []

    async def one() -> None:
        for _ in range(count // CALLERS):
            began = time.perf_counter()
            await push()
            took.append(time.perf_counter() - began)

    await push()
    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(CALLERS)))
    seconds = time.perf_counter() - began
    took.sort()
    p50, p99 = (1e3 * took[int(len(took) * share)] for share in (0.5, 0.99))
    print(json.dumps({"rate": len(took) / seconds, "p50": p50, "p99": p99}))


async def fill(push: Callable[[str], Awaitable[object]], kind: str, count: int) -> None:
    """Pushes jobs of that kind, 50 at a time; or measures the pushes of callers."""
    if kind == "push":
        await callers(lambda: push("noop"), count)
        return
    for first in range(0, count, 50):
        await asyncio.gather(*(push(kind) for _ in range(min(50, count - first))))
