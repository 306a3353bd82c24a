"""A job of which at most one runs and one waits, with a ledger in a server of its own; and, run as
a program, the processes that push it. A tree loads a copy of this file as its app.

The ledger has for each document: ``version``, as a database would have it; ``known``, the newest
one whose push Redis has confirmed; ``synced``, the newest one that a run has read, and which has
then ended; ``running``, who runs it; ``given``, the versions that the runs were pushed with.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

from redis import Redis

import forkq

# "latest" is the promise; another value shows that the ledger notices what breaks it.
HOW: Any = os.environ.get("FORKQ_TEST_ON_DUPLICATE", "latest")
ledger = Redis.from_url(os.environ["FORKQ_TEST_LEDGER"])
raise_to = ledger.register_script(
    "if tonumber(ARGV[1]) > tonumber(redis.call('GET', KEYS[1]) or 0) then "
    "redis.call('SET', KEYS[1], ARGV[1]) end"
)


@forkq.job(name="Sync", unique_for=3600, unique_by=["doc"], on_duplicate=HOW, on_crash="requeue")
def sync(doc: str, version: int) -> None:
    """Reads the newest version, and writes it after a moment."""
    me = f"{os.getpid()}:{threading.get_ident()}"
    found: Any = ledger.set(f"running:{doc}", me, get=True)
    before = (found or b"").decode()
    if before and _lives(int(before.split(":")[0])):
        ledger.rpush("overlaps", f"{doc} {before} {me}")
    ledger.rpush(f"given:{doc}", version)
    version_now: Any = ledger.get(f"version:{doc}")
    time.sleep(random.uniform(0, 0.01))
    raise_to([f"synced:{doc}"], [version_now])
    ledger.delete(f"running:{doc}")


def _lives(pid: int) -> bool:
    """Whether the process runs: not one that was killed, and waits for its parent."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in ("Z", "X")
    except OSError:
        return False


def fork(number: int, rounds: int) -> int:
    if pid := os.fork():
        return pid
    ledger.rpush("pushers", os.getpid())
    while int(ledger.incr(f"rounds:{number}")) <= rounds:
        doc = random.choice(("a", "b", "c", f"own{number}"))
        version = ledger.incr(f"version:{doc}")
        sync.perform_async(doc, version)
        raise_to([f"known:{doc}"], [version])
    os._exit(0)


if __name__ == "__main__":
    from tests.support.pushers import push_all  # a tree's copy of this file needs none of it

    forkq.configure(url=sys.argv[1])
    rounds = int(sys.argv[3])
    push_all(lambda number: fork(number, rounds), int(sys.argv[2]))
