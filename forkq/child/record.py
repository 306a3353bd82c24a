"""The child's record in Redis: that it lives, where, and what it runs.

It expires by itself. Sidekiq's API and Web UI read it; whoever finds leases of an owner without a
record may give them back (clock/sweep.py).
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any, Final, NamedTuple

import msgspec

from ..capsule import Capsule
from ..config import Config
from ..connection import Command, OutOfMemory, RedisError, Wire
from ..keys import Keys
from ..lease import RECORD_TTL, Unit
from ..scripts import RECORD
from ..times import now
from ..version import __version__
from ..whereabouts import here
from .memory import resident

_PLACE_TTL: Final = 86_400
_PLACE_EVERY: Final = 3600.0  # seconds; written twice at least before it expires
# Sidekiq's Busy page shows the version of each process that is not its own: so say what it is.
_VERSION: Final = f"forkq {__version__}"


class Written(NamedTuple):
    """What became of a record. ``fresh``: there was none, it is the first one or the last one is
    gone; ``refused``: what else the server did not take."""

    fresh: bool
    refused: RedisError | None


class Record:
    """Written and removed by the heartbeat's thread. ``info`` is what ``describe`` says."""

    def __init__(self, identity: str, keys: Keys, info: dict[str, Any]) -> None:
        self._identity = identity
        self._keys = keys
        self._info = info
        self._place = here()
        self._place_due = 0.0
        self._had_work = False

    @property
    def place_is_due(self) -> bool:
        """Whether the next beat tells anew where this child lives, as it does once an hour."""
        return time.monotonic() >= self._place_due

    def write(self, wire: Wire, units: list[Unit], round_trip: int, *, quiet: bool) -> Written:
        """Writes all of it. Raises ConnectionLost, or RedisError if not even the record itself was
        taken.

        Every beat lists this child among the processes: others strike off a child without a record,
        and a web UI may have struck off one that lives."""
        commands = [
            *self._state(units, round_trip, quiet),
            *self._work(units),
            *self._whereabouts(),
        ]
        replies = wire.pipeline(commands)
        if isinstance(replies[0], OutOfMemory):  # a living process must not be taken for dead
            _, key, *fields = commands[0]
            arguments = (RECORD_TTL, self._identity, *fields)
            replies[:2] = [wire.script(RECORD, (key, self._keys.processes), arguments), None]
        if isinstance(replies[0], RedisError):
            raise replies[0]
        fresh = bool(replies[0])  # fields were added
        refusals = [reply for reply in replies if isinstance(reply, RedisError)]
        if self.place_is_due and not refusals:
            self._place_due = time.monotonic() + _PLACE_EVERY
        return Written(fresh, next(iter(refusals), None))

    def next_order(self, wire: Wire) -> str | None:
        """The oldest of the orders that a web UI has pushed on the left, if there is any."""
        order = wire.call("RPOP", self._keys.signals(self._identity))
        return None if order is None else str(order, "utf-8", "replace")

    def remove(self, wire: Wire) -> None:
        """Takes it away: this child is gone."""
        commands: list[Command] = [
            ("SREM", self._keys.processes, self._identity),
            ("DEL", self._keys.process(self._identity), self._keys.work(self._identity)),
            ("DEL", self._keys.place(self._identity)),
        ]
        for reply in wire.pipeline(commands):
            if isinstance(reply, RedisError):
                raise reply

    def _state(self, units: list[Unit], round_trip: int, quiet: bool) -> list[Command]:
        key = self._keys.process(self._identity)
        fields = {
            "info": msgspec.json.encode(self._info),
            "concurrency": self._info["concurrency"],
            "busy": sum(1 for unit in units if unit.thread),
            "beat": now(),
            "rtt_us": round_trip,
            "quiet": "true" if quiet else "false",
            "rss": resident(),
        }
        flat = [part for pair in fields.items() for part in pair]
        listed = ("SADD", self._keys.processes, self._identity)
        return [("HSET", key, *flat), listed, ("EXPIRE", key, RECORD_TTL)]

    def _work(self, units: list[Unit]) -> list[Command]:
        key = self._keys.work(self._identity)
        running = {_thread_name(unit): _work(unit) for unit in units if unit.thread}
        commands: list[Command] = [("DEL", key)] if self._had_work or running else []
        self._had_work = bool(running)
        if running:
            flat = [part for pair in running.items() for part in pair]
            commands += [("HSET", key, *flat), ("EXPIRE", key, RECORD_TTL)]
        return commands

    def _whereabouts(self) -> list[Command]:
        if not self.place_is_due:
            return []
        return [("SET", self._keys.place(self._identity), self._place, "EX", _PLACE_TTL)]


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
        "version": _VERSION,
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
    """What a processor runs, in Sidekiq's words; ``progress``, which it ignores, is ours."""
    running = {
        "queue": unit.queue_name,
        "payload": unit.payload.decode("utf-8", "replace"),
        "run_at": int(unit.started),
    }
    if unit.progress is not None:
        running["progress"] = unit.progress
    return msgspec.json.encode(running)
