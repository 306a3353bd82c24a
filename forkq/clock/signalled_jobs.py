"""Waking the jobs that wait for a signal, in the leader's clock.

Who sends a signal does not know the keys of the jobs that wait for it. So it notes the event in
``forkq:signalled``, which this task tracks: the jobs go on a moment later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from ..store.connection import DamagedKey, RedisConnection
from ..store.scripts import SIGNAL_WAKE
from ..store.steps import checked
from ..wire.keys import Keys
from .tracking import tracked

# How many jobs one call wakes, and of how many one reads.
_PAGE: Final = 100
_READ: Final = 500


class SignalledJobs:
    """Gives signals to the jobs that wait for them."""

    def __init__(self, keys: Keys, connection: RedisConnection) -> None:
        self._keys = keys
        self._connection = connection
        self._events: list[bytes] = []
        self._watch = False

    def load(self, watch: bool) -> None:
        """Reads which signals have come."""
        self._watch = watch
        asked = tracked(("SMEMBERS", self._keys.signalled), watch)
        self._events = sorted(checked(self._connection.pipeline(asked))[-1])

    def next_due(self) -> float | None:
        """At once, if one has come."""
        return 0.0 if self._events else None

    def work(self) -> None:
        """Gives the signal of one event to the jobs that wait for it, the oldest first. Raises
        DamagedKey for an event that is none, once: the other events do not wait for it."""
        event = self._events[0]
        try:
            self._give(event.decode("utf-8", "surrogateescape"))
        except DamagedKey:
            self._connection.call("SREM", self._keys.signalled, event)
            raise
        self.load(self._watch)  # the server does not report this clock's own change

    def _give(self, name: str) -> None:
        signal = self._connection.call("HGET", self._keys.event(name), "") or b""
        waiting = [jid for _, jid in sorted(self._waiting(self._keys.event(name)))]
        for begin in range(0, max(1, len(waiting)), _PAGE):
            is_last = begin + _PAGE >= len(waiting)
            self._wake(waiting[begin : begin + _PAGE], name, signal, int(is_last))

    def _wake(self, jids: Sequence[bytes], *how: Any) -> None:
        """Gives the signal to these jobs; ``how``: name, signal, and whether they are the last."""
        keys = self._keys
        steps = (keys.steps(jid.decode("utf-8", "surrogateescape")) for jid in jids)
        names = (keys.event(how[0]), keys.signalled, keys.schedule, *steps)
        self._connection.script(SIGNAL_WAKE, names, (*how, *jids))

    def _waiting(self, event: str) -> Iterator[tuple[float, bytes]]:
        """Since when each job waits for the event, and its jid."""
        jids = [jid for jid in self._connection.call("HKEYS", event) if jid]
        for begin in range(0, len(jids), _READ):
            page = jids[begin : begin + _READ]
            found = self._connection.call("HMGET", event, *page)
            for jid, waiter in zip(page, found, strict=True):
                if waiter is not None:
                    yield float(waiter.partition(b" ")[0]), jid
