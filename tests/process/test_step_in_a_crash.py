"""A job whose process dies in one of its durable steps: the crash record names the step."""

from __future__ import annotations

from typing import Any

from redis import Redis

from forkq.api.life import crash_of
from forkq.wire.payload import loads
from tests.process.shared import push
from tests.support.server import Server
from tests.support.tree import StartTree
from tests.support.waiting import wait_until

APP = """
import os, signal
from pathlib import Path
import forkq

def die_once(name: str) -> str:
    done = Path(f"{name}.done")
    if not done.exists():
        done.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return name

@forkq.job(name="Steps")
def steps() -> None:
    forkq.step("before", str, 7)
    forkq.step("charge the card", die_once, "threads")
    forkq.sleep("nap", 3600)

@forkq.job(name="AsyncSteps")
async def async_steps() -> None:
    await forkq.astep("before", str, 7)
    await forkq.astep("ship it", die_once, "loop")
    await forkq.asleep("nap", 3600)
"""


def test_the_crash_record_names_the_step(
    tree: StartTree, redis: Redis, redis_server: Server
) -> None:
    """In a thread and in a coroutine; the next run, alone, does the step and sleeps."""
    running = tree(redis_server, app=APP, args=["-w", "1", "-c", "2"])
    for name, step in (("Steps", "charge the card"), ("AsyncSteps", "ship it")):
        jid = push(redis_server, name)
        wait_until(lambda: redis.zcard("schedule") == 1, what="the sleep")
        found: Any = redis.zrange("schedule", 0, -1)
        [crash] = loads(found[0])["forkq"]["crashes"]
        assert crash_of(crash).step == step
        told = running.run("find", jid, "--redis", redis_server.url).stdout
        [told] = [line for line in told.splitlines() if line.startswith("crash")]
        assert f'in the step "{step}"' in told
        redis.delete("schedule")
