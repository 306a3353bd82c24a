"""Waking the jobs that wait for a signal, in the leader's clock.

Who sends a signal does not know the keys of the jobs that wait for it. So it notes the event in
``forkq:signalled``, which this task tracks: the jobs go on a moment later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import nsmallest
from typing import TYPE_CHECKING, Final, NamedTuple

from ..features.steps.parts import gets, is_for_one, since_in
from ..store.connection import DamagedKey, RedisConnection
from ..store.scripts import SIGNAL_WAKE
from ..store.steps import checked
from ..wire.keys import Keys
from .tracking import tracked

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# How many waiting jobs are read, and woken, in one step.
_PAGE: Final = 100
_BEGIN: Final = b"0"


class _SignalScan(NamedTuple):
    """How far a signal was given to the jobs that wait for its event: ``cursor`` is that of HSCAN.
    ``signal``: as it was when the first jobs were read."""

    event: bytes
    signal: bytes
    cursor: bytes = _BEGIN


class SignalledJobs:
    """Gives signals to the jobs that wait for them: a page of jobs in each step, so that however
    many wait for one event, the clock's other work goes on."""

    def __init__(self, keys: Keys, connection: RedisConnection, log: FilteringBoundLogger) -> None:
        self._keys = keys
        self._connection = connection
        self._log = log
        self._events: list[bytes] = []
        self._scan: _SignalScan | None = None
        self._watch = False

    def load(self, watch: bool) -> None:
        """Reads which signals have come."""
        self._watch = watch
        asked = tracked(("SMEMBERS", self._keys.signalled), watch)
        self._events = sorted(checked(self._connection.pipeline(asked))[-1])

    def next_due(self) -> float | None:
        """At once, if one has come."""
        return 0.0 if self._events or self._scan else None

    def work(self) -> None:
        """Gives the signal of one event to a page of the jobs that wait for it. Raises DamagedKey
        for an event that is none, once: the other events do not wait for it."""
        scan, self._scan = self._scan, None  # after an error it begins anew
        event = scan.event if scan else self._events[0]
        try:
            self._scan = self._give(scan or self._begin(event))
        except DamagedKey:
            self._connection.call("SREM", self._keys.signalled, event)
            raise
        self.load(self._watch)  # the server does not report this clock's own change

    def _begin(self, event: bytes) -> _SignalScan:
        signal = self._connection.call("HGET", self._keys.event(_text(event)), "")
        return _SignalScan(event, signal or b"")

    def _give(self, scan: _SignalScan) -> _SignalScan | None:
        """Gives it to some jobs. Returns where to go on; None if all have had their turn."""
        if is_for_one(scan.signal):
            oldest = [jid for _, jid in nsmallest(_PAGE, self._all_waiting(scan))]
            self._wake(oldest, scan, is_last=len(oldest) < _PAGE)
            return None
        cursor, found = self._read(scan)
        jids = [jid for _, jid in self._waiting(scan, found)]
        self._wake(jids, scan, is_last=cursor == _BEGIN)
        return None if cursor == _BEGIN else scan._replace(cursor=cursor)

    def _wake(self, jids: Sequence[bytes], scan: _SignalScan, *, is_last: bool) -> None:
        """Gives the signal to these jobs."""
        keys, event = self._keys, _text(scan.event)
        steps = (keys.steps(_text(jid)) for jid in jids)
        names = (keys.event(event), keys.signalled, keys.schedule, *steps)
        self._connection.script(SIGNAL_WAKE, names, (event, scan.signal, int(is_last), *jids))

    def _all_waiting(self, scan: _SignalScan) -> Iterator[tuple[float, bytes]]:
        while True:
            cursor, found = self._read(scan)
            yield from self._waiting(scan, found)
            if cursor == _BEGIN:
                return
            scan = scan._replace(cursor=cursor)

    def _read(self, scan: _SignalScan) -> tuple[bytes, Mapping[bytes, bytes]]:
        """Some jobs that wait for the event, and where to go on."""
        name = self._keys.event(_text(scan.event))
        cursor, flat = self._connection.call("HSCAN", name, scan.cursor, "COUNT", _PAGE)
        return cursor, dict(zip(flat[::2], flat[1::2], strict=True))

    def _waiting(
        self, scan: _SignalScan, found: Mapping[bytes, bytes]
    ) -> Iterator[tuple[float, bytes]]:
        """Since when each of these jobs waits that gets the signal, and its jid: others, whose time
        was up before, keep none of them from it. Logs those of which another program has written
        what forkq cannot read: they go on at their time-out."""
        for jid, waiter in found.items():
            since = since_in(waiter)
            if jid and since is not None and gets(waiter, scan.signal):
                yield since, jid
            elif jid and since is None:
                where = {"signal": _text(scan.event), "jid": _text(jid)}
                self._log.error("a job cannot get its signal: it goes on at its time-out", **where)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
