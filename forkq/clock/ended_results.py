"""Writing the results of jobs that ended in a script which could not know the key of the result, in
the leader's clock: a newer job has taken their place (store/scripts/ticket.lua).

The script has noted each of them. So who waits for such a job hears of its end a moment later.
"""

from __future__ import annotations

from typing import Any, Final, cast

from ..features.results.parts import Outcome, has_ended, read, result_of
from ..store.connection import RedisConnection
from ..store.scripts import RESULTS_ENDED
from ..store.steps import checked
from ..wire.keys import Keys
from .tracking import tracked

# How many are written in one step.
_PAGE: Final = 100


class EndedResults:
    """Writes what was noted."""

    def __init__(self, keys: Keys, connection: RedisConnection) -> None:
        self._keys = keys
        self._connection = connection
        self._notes: list[bytes] = []
        self._watch = False

    def load(self, watch: bool) -> None:
        """Reads the first notes."""
        self._watch = watch
        asked = tracked(("LRANGE", self._keys.results_ended, 0, _PAGE - 1), watch)
        self._notes = checked(self._connection.pipeline(asked))[-1]

    def next_due(self) -> float | None:
        """At once, if there is a note."""
        return 0.0 if self._notes else None

    def work(self) -> None:
        """Writes the results of a page of notes."""
        noted = [note.partition(b" ") for note in self._notes]
        names = [self._keys.result(jid.decode("utf-8", "surrogateescape")) for _, _, jid in noted]
        found = self._connection.call("MGET", *names)
        arguments: list[Any] = []
        for note, (way, _, _), before in zip(self._notes, noted, found, strict=True):
            arguments += (note, *_written(way.decode(), before))
        keys = (self._keys.results_ended, *names)
        self._connection.script(RESULTS_ENDED, keys, arguments)
        self.load(self._watch)  # the server does not report this clock's own change


def _written(way: str, before: bytes | None) -> tuple[bytes, str, int]:
    """What results_ended.lua is told of one job: the placeholder that it has, and its result."""
    waiting = None if before is None or has_ended(before) else read(before)
    if before is None or waiting is None or not waiting.ttl:
        return b"", "", 0
    return before, result_of(waiting, cast("Outcome", way)), round(1000 * waiting.ttl)
