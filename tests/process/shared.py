"""What the process tests share: pushing, looking into Redis, reading the journal and the log."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from redis import Redis

import forkq
from tests.support.server import Server
from tests.support.tree import ForkqTree
from tests.support.waiting import wait_until

APP = Path(__file__).with_name("app.py")


@dataclass(frozen=True, slots=True)
class JournalLine:
    """One line of the journal; ``at`` is monotonic, which all processes of a machine share."""

    event: str
    jid: str
    pid: int
    at: float


class Journal:
    """The lines that the jobs of a test wrote, in any process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.env = {"FORKQ_TEST_JOURNAL": str(path)}

    def lines(self, *events: str) -> list[JournalLine]:
        """All lines, or those of some kinds, oldest first."""
        if not self.path.exists():
            return []
        text = self.path.read_text()
        whole = text[: text.rfind("\n") + 1]  # the last line may be in the writing
        found = (line.split() for line in whole.splitlines())
        lines = (JournalLine(event, jid, int(pid), float(at)) for event, jid, pid, at in found)
        return [line for line in lines if not events or line.event in events]

    def jids(self, event: str) -> set[str]:
        """The jobs that recorded ``event``."""
        return {line.jid for line in self.lines(event)}

    def runs(self) -> dict[str, list[JournalLine]]:
        """The beginnings of each job's runs."""
        found: dict[str, list[JournalLine]] = defaultdict(list)
        for line in self.lines("begin"):
            found[line.jid].append(line)
        return found

    def wait(self, event: str, jids: Iterable[str], deadline: float | None = None) -> None:
        """Waits until each of ``jids`` has recorded ``event``."""
        wanted = set(jids)
        wait_until(
            lambda: wanted <= self.jids(event),
            deadline=deadline,
            every=0.02,
            what=f"{event!r} of {len(wanted)} jobs in {self.path}",
        )


def push(server: Server | str, name: str, *args: Any, **more: Any) -> str:
    """Pushes one job; returns its jid."""
    jid = _client(server).push({"class": name, "args": list(args), **more})
    assert jid is not None
    return jid


def push_many(
    server: Server | str, name: str, rows: Sequence[Sequence[Any]], **more: Any
) -> list[str]:
    """Pushes one job per row of arguments; returns their jids, in the order they shall run."""
    rows = [list(row) for row in rows]
    return _client(server).push_bulk({"class": name, "args": rows, **more})


def _client(server: Server | str) -> forkq.Client:
    return forkq.Client(server.url if isinstance(server, Server) else server)


def waiting(redis: Redis, queue: str = "default") -> list[str]:
    """The jids in a queue, the next one to run first; its suspects come before the others."""
    keys = (f"queue:{queue}", f"{{queue:{queue}}}:suspects")
    payloads: list[Any] = [payload for key in keys for payload in _entries(redis, key)]
    return [json.loads(payload)["jid"] for payload in reversed(payloads)]


def suspects(redis: Redis, queue: str = "default") -> list[str]:
    """The jids that wait to run alone, the next one first."""
    payloads = _entries(redis, f"{{queue:{queue}}}:suspects")
    return [json.loads(payload)["jid"] for payload in reversed(payloads)]


def _entries(redis: Redis, key: str) -> list[Any]:
    found: Any = redis.lrange(key, 0, -1)
    return list(found)


def leased(redis: Redis, queue: str = "default") -> list[str]:
    """The jids in flight."""
    payloads: Any = redis.hvals(f"{{queue:{queue}}}:inflight")
    return [json.loads(payload)["jid"] for payload in payloads]


def payloads(redis: Redis, key: str) -> list[dict[str, Any]]:
    """The jobs in the schedule, retry or dead set."""
    members: Any = redis.zrange(key, 0, -1)
    return [json.loads(member) for member in members]


def settled(redis: Redis, queue: str = "default") -> bool:
    """Whether nothing waits and nothing is in flight."""
    # One command, at one instant: a job may go back from the leases to the queue.
    keys = (f"queue:{queue}", f"{{queue:{queue}}}:inflight", f"{{queue:{queue}}}:suspects")
    return not redis.exists(*keys)


def wait_settled(redis: Redis, deadline: float | None = None) -> None:
    """Waits until every job was run and acknowledged."""
    wait_until(
        lambda: settled(redis), deadline=deadline, every=0.02, what="an empty queue, nothing leased"
    )


def wait_swept(redis: Redis, tree: ForkqTree) -> None:
    """Waits until the first sweep of the tree's clock is over: it recovers what is dead just then,
    and cannot know how that died. After it the clock leads."""

    def leads() -> bool:
        holder: Any = redis.get("forkq:leader") or b""
        clocks = tree.children("forkq clock")
        return bool(clocks) and f":{clocks[-1].pid}:".encode() in holder

    wait_until(leads, what="the first sweep of the clock")


_LISTENS = """
import os, socket

@forkq.on("startup")
def listen():
    global door
    door = socket.socket()
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    door.bind(("127.0.0.1", int(os.environ["PORT"])))
    door.listen()
"""


def listening(journal: Journal, app: Path = APP) -> tuple[str, dict[str, str]]:
    """An app that listens on a fixed port, so that no solo child boots beside another one; and its
    environment."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        env = {**journal.env, "PORT": str(free.getsockname()[1])}
    return app.read_text() + _LISTENS, env


def counter(redis: Redis, name: str) -> int:
    """``stat:processed`` or ``stat:failed``."""
    value: Any = redis.get(f"stat:{name}")
    return int(value or 0)


def workers(tree: ForkqTree) -> list[psutil.Process]:
    """The tree's children that fetch jobs: not the clock, not the solo children."""
    return [child for child in tree.children("forkq child") if ".solo" not in title(child)]


def solo_children(tree: ForkqTree) -> list[psutil.Process]:
    """The tree's children that run one suspect at a time."""
    names = (".solo", ".alone")
    return [c for c in tree.children("forkq child") if any(name in title(c) for name in names)]


def title(process: psutil.Process) -> str:
    """What ``ps`` shows of a process; "" once it has ended."""
    try:
        return " ".join(part for part in process.cmdline() if part)
    except psutil.Error:
        return ""


def zombies(tree: ForkqTree) -> list[psutil.Process]:
    """The master's children that died and were not reaped."""
    try:
        children = psutil.Process(tree.pid).children()
        return [child for child in children if child.status() == psutil.STATUS_ZOMBIE]
    except psutil.NoSuchProcess:
        return []


def json_log(tree: ForkqTree) -> list[dict[str, Any]]:
    """The log of a tree that was started with ``--log-format json``. A child that was killed while
    it wrote its stacks (``faulthandler``, piece by piece) leaves half a line before the next one.
    """
    return [line for line in map(_json_in, tree.log_text().splitlines()) if line]


def _json_in(line: str) -> dict[str, Any]:
    start = line.find('{"')
    try:
        return json.JSONDecoder().raw_decode(line, start)[0] if start >= 0 else {}
    except ValueError:  # the last line, half written
        return {}


def events(tree: ForkqTree, event: str) -> list[dict[str, Any]]:
    """The lines of a JSON log that report ``event``."""
    return [line for line in json_log(tree) if line["event"] == event]


def wait_events(
    tree: ForkqTree, event: str, count: int = 1, deadline: float | None = None
) -> list[dict[str, Any]]:
    """Waits until ``event`` was logged ``count`` times."""
    return wait_until(
        lambda: found if len(found := events(tree, event)) >= count else [],
        deadline=deadline,
        every=0.02,
        what=f"{count} x {event!r} in {tree.log}",
    )


def wait_event_of(tree: ForkqTree, event: str, pid: int) -> dict[str, Any]:
    """Waits until ``event`` was logged of process ``pid``, and returns the first such line. On a
    slow machine the same may be logged of other processes, too."""
    found = wait_until(
        lambda: [line for line in events(tree, event) if line.get("pid") == pid],
        every=0.02,
        what=f"{event!r} of {pid} in {tree.log}",
    )
    return found[0]


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """The processor time that these have used in their lives."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def measured(text: str) -> None:
    """Prints a figure: pytest -s shows it, and so does a failed test."""
    sys.stdout.write(f"{text}\n")


def pass_time(seconds: float) -> None:
    """For promises about a stretch of time: nothing must happen in it."""
    end = time.monotonic() + seconds
    wait_until(
        lambda: time.monotonic() >= end, deadline=seconds + 5, what="time to pass", every=0.02
    )
