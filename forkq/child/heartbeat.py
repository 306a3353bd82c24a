"""The child's record in Redis: that it lives, what it runs, what it has counted.

A thread of its own with a connection of its own, so that a slow Redis never delays an order from
the master. The record expires by itself; whoever finds leases of an owner without a record may
give them back.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, Final

import msgspec
import psutil

from ..capsule import Capsule
from ..config import Config
from ..connection import Command, ConnectionLost, OutOfMemory, RedisError, Wire
from ..keys import Keys
from ..lease import Unit
from ..outage import Outage
from ..scripts import RECORD
from ..times import now
from ..whereabouts import here
from .stats import Tally

INTERVAL: Final = 10.0
RECORD_TTL: Final = 60
_SOON: Final = 1.0
_PLACE_TTL: Final = 86_400
_PLACE_EVERY: Final = 3600.0  # seconds; written twice at least before it expires
_HISTORY_TTL: Final = 5 * 365 * 86_400
_SIDEKIQ_TONGUE: Final = "7.2.4"  # the version whose records Sidekiq's UI shall take ours for


class Heartbeat:
    """Beats until ``stop``. ``on_signal`` is called with what a web UI asked of this child,
    ``chores`` after each beat: it tries again what Redis would not do, and tells whether to come
    back to it soon.

    ``outage`` is shared with all that talks to Redis: any answer ends it. ``refusal`` is ours: a
    full server takes no record, while fetches go on as if nothing were wrong."""

    def __init__(
        self,
        identity: str,
        keys: Keys,
        wire: Wire,
        outage: Outage,
        refusal: Outage,
        snapshot: Callable[[], tuple[list[Unit], Tally, bool]],
        on_signal: Callable[[str], None],
        chores: Callable[[], bool],
        info: dict[str, Any],
        log: Any,
    ) -> None:
        self._identity = identity
        self._keys = keys
        self._wire = wire
        self._outage = outage
        self._refusal = refusal
        self._snapshot = snapshot
        self._on_signal = on_signal
        self._chores = chores
        self._info = info
        self._log = log
        self._flushed = Tally()
        self._had_work = False
        self._round_trip = 0
        self._next_beat = 0.0
        self._place = here()
        self._place_due = 0.0
        self._news = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Starts the thread; it beats at once."""
        self._thread.start()

    def soon(self) -> None:
        """Beats now instead of at the next interval: something changed that others should see."""
        self._news.set()

    def stop(self, deadline: float, *, gone: bool) -> None:
        """Ends the thread, and flushes the counters. Takes the record away if this child is
        ``gone``; with leases left it stays, and tells others that their owner is dead."""
        self._ended = True
        self._news.set()
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if not self._thread.is_alive():
            self._attempt(self._leave if gone else self._beat)

    def _run(self) -> None:
        while not self._ended:
            self._attempt(self._beat)
            self._next_beat = time.monotonic() + INTERVAL
            self._rest()

    def _rest(self) -> None:
        """Until the next beat, or news; what is left to try is tried meanwhile."""
        while not self._news.is_set() and (left := self._next_beat - time.monotonic()) > 0:
            pause = min(left, _SOON) if self._chores() else left
            self._news.wait(pause)
        self._news.clear()

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            if self._wire.stale():
                self._wire.close()  # it died in an outage that is over: no news
            self._wire.connect()
            action()
        except ConnectionLost as error:
            self._wire.close()
            self._outage.begin(error)
        except RedisError as error:
            self._wire.close()
            self._refusal.begin(error)
        except Exception as error:  # noqa: BLE001 - a dead heartbeat would cost running jobs
            self._wire.close()
            self._log.error("a heartbeat failed; the next one follows", exc_info=error)
        else:
            self._outage.end()
            self._refusal.end()

    def _beat(self) -> None:
        units, tally, quiet = self._snapshot()
        sent = time.perf_counter()
        commands: list[Command] = [
            *self._record(units, quiet),
            *self._work(units),
            *self._counters(tally),
            *self._whereabouts(),
            ("LPOP", self._keys.signals(self._identity)),
        ]
        replies = self._wire.pipeline(commands)
        if isinstance(replies[0], OutOfMemory):
            _, key, *fields = commands[0]
            replies[0] = self._wire.script(RECORD, (key,), (RECORD_TTL, *fields))
        self._checked(replies)
        if time.monotonic() >= self._place_due:
            self._place_due = time.monotonic() + _PLACE_EVERY
        self._round_trip = int((time.perf_counter() - sent) * 1e6)
        self._flushed = tally
        if replies[0]:  # fields were added: the record is new, or had expired
            self._wire.call("SADD", self._keys.processes, self._identity)
        if replies[-1] is not None:
            self._on_signal(replies[-1].decode("utf-8", "replace"))

    def _leave(self) -> None:
        _, tally, _ = self._snapshot()
        commands = [
            *self._counters(tally),
            ("SREM", self._keys.processes, self._identity),
            ("DEL", self._keys.process(self._identity), self._keys.work(self._identity)),
            ("DEL", self._keys.place(self._identity)),
        ]
        self._checked(self._wire.pipeline(commands))
        self._flushed = tally

    def _checked(self, replies: list[Any]) -> list[Any]:
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def _record(self, units: list[Unit], quiet: bool) -> list[tuple[Any, ...]]:
        key = self._keys.process(self._identity)
        fields = {
            "info": msgspec.json.encode(self._info),
            "concurrency": self._info["concurrency"],
            "busy": sum(1 for unit in units if unit.thread),
            "beat": now(),
            "rtt_us": self._round_trip,
            "quiet": "true" if quiet else "false",
            "rss": psutil.Process().memory_info().rss // 1024,
        }
        flat = [part for pair in fields.items() for part in pair]
        return [("HSET", key, *flat), ("EXPIRE", key, RECORD_TTL)]

    def _work(self, units: list[Unit]) -> list[tuple[Any, ...]]:
        key = self._keys.work(self._identity)
        running = {_thread_name(unit): _work(unit) for unit in units if unit.thread}
        commands: list[tuple[Any, ...]] = [("DEL", key)] if self._had_work or running else []
        self._had_work = bool(running)
        if running:
            flat = [part for pair in running.items() for part in pair]
            commands += [("HSET", key, *flat), ("EXPIRE", key, RECORD_TTL)]
        return commands

    def _whereabouts(self) -> list[tuple[Any, ...]]:
        if time.monotonic() < self._place_due:
            return []
        return [("SET", self._keys.place(self._identity), self._place, "EX", _PLACE_TTL)]

    def _counters(self, tally: Tally) -> list[tuple[Any, ...]]:
        today = datetime.now(timezone.utc).strftime("%Y-%m-%d")
        commands: list[tuple[Any, ...]] = []
        for name in ("processed", "failed"):
            more = getattr(tally, name) - getattr(self._flushed, name)
            if more:
                day = self._keys.stat_of_day(name, today)
                commands += [
                    ("INCRBY", self._keys.stat(name), more),
                    ("INCRBY", day, more),
                    ("EXPIRE", day, _HISTORY_TTL),
                ]
        return commands


def describe(identity: str, config: Config, capsule: Capsule) -> dict[str, Any]:
    """The ``info`` of a process record, in Sidekiq's words."""
    weights = dict(capsule.queues)
    return {
        "hostname": socket.gethostname(),
        "started_at": now(),
        "pid": os.getpid(),
        "tag": config.tag,
        "concurrency": capsule.concurrency,
        "capsules": {
            capsule.name: {
                "concurrency": capsule.concurrency,
                "mode": capsule.mode,
                "weights": weights,
            }
        },
        "queues": list(capsule.queue_names),
        "weights": [weights],
        "labels": list(config.labels),
        "identity": identity,
        "version": _SIDEKIQ_TONGUE,
        "embedded": False,
    }


def _thread_name(unit: Unit) -> str:
    """A thread's id in base 36, as Sidekiq writes them."""
    digits, number = "", unit.thread
    while number:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits or "0"


def _work(unit: Unit) -> bytes:
    return msgspec.json.encode(
        {
            "queue": unit.queue_name,
            "payload": unit.payload.decode("utf-8", "replace"),
            "run_at": int(unit.started),
        }
    )
