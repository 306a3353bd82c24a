"""Carrying notes to the shards that they are for, in the leader's clock (features/notes.py).

A note is deleted once its shard has done what it says. One that is down, or refuses, gets its notes
later, and keeps no other one from theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..errors import ForkqError, MalformedPayload
from ..features.effects import packed
from ..features.notes import effect_in
from ..store.connection import RedisConnection, RedisError, ResponseError
from ..store.damage import DAMAGED_FEATURE, about
from ..store.outage import Backoff, Outage
from ..store.scripts import EFFECTS_ALONE
from ..store.steps import checked
from ..wire.keys import Keys
from ..wire.times import now
from .other_shards import OtherShards
from .tracking import tracked

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# How many notes are read, and carried, in one step.
_PAGE: Final = 100
# The longest pause between two tries to reach a shard that is down, in seconds: each may hold up
# the clock for as long as it waits for a reply.
_LONGEST_REST: Final = 30.0
_DOWN: Final = "the shard {} does not take what is noted for it; trying again"
_UP: Final = "the shard {} takes what was noted for it"


class Note(NamedTuple):
    """One note: its id in the stream, the shard that it is for, and its effect."""

    id: bytes
    to: str
    text: bytes


class NoteCarrier:
    """Carries the notes of one shard. While there are none, nothing is asked."""

    def __init__(
        self,
        keys: Keys,
        connection: RedisConnection,
        others: OtherShards,
        log: FilteringBoundLogger,
    ) -> None:
        self._keys = keys
        self._connection = connection
        self._others = others
        self._log = log
        self._notes: list[Note] = []
        # What stands before it is for shards that rest: it is read again when one has rested.
        self._from = b"-"
        self._watch = False
        self._rests: dict[str, float] = {}  # the shards that are down -> when to try, epoch seconds
        self._outages: dict[str, tuple[Outage, Backoff]] = {}

    def load(self, watch: bool) -> None:
        """Reads the next notes."""
        self._watch = watch
        asked = ("XRANGE", self._keys.notes, self._from, "+", "COUNT", _PAGE)
        found = checked(self._connection.pipeline(tracked(asked, watch)))[-1]
        self._notes = [_note(*entry) for entry in found]

    def next_due(self) -> float | None:
        """At once if there is a note; else when a shard that was down is tried again."""
        return 0.0 if self._notes else min(self._rests.values(), default=None)

    def work(self) -> None:
        """Carries a page of notes, and reads the next one: the server does not report this clock's
        own changes."""
        if rested := [to for to, until in self._rests.items() if until <= now()]:
            for to in rested:
                del self._rests[to]
            self._from = b"-"
            self.load(self._watch)
        for to in dict.fromkeys(note.to for note in self._notes):
            if to not in self._rests:
                self._carry(to, [note for note in self._notes if note.to == to])
        if any(note.to in self._rests for note in self._notes):
            self._from = b"(" + self._notes[-1].id
        self.load(self._watch)

    def _carry(self, to: str, notes: Sequence[Note]) -> None:
        """Has that shard do what these notes say, and deletes them."""
        try:
            self._send(to, notes)
        except (RedisError, ForkqError) as error:
            outage, backoff = self._outage_of(to)
            outage.begin(error)
            self._rests[to] = now() + backoff.pause()
            return
        self._connection.call("XDEL", self._keys.notes, *(note.id for note in notes))
        if to in self._outages:
            self._outages.pop(to)[0].end()

    def _outage_of(self, to: str) -> tuple[Outage, Backoff]:
        if to not in self._outages:
            outage = Outage(self._log, _DOWN.format(to), _UP.format(to))
            self._outages[to] = outage, Backoff(longest=_LONGEST_REST)
        return self._outages[to]

    def _send(self, to: str, notes: Sequence[Note]) -> None:
        is_here = to in ("", self._others.own)
        keys = self._keys if is_here else self._others.keys(to)
        names, texts, ends = list[Any](), list[str](), keys.totals("ends")
        for note in notes:
            try:
                texts.append(packed([effect_in(note.text, keys.prefix)], names, ends))
            except MalformedPayload as error:
                self._log.error("a note is left out", note=repr(note.text[:200]), error=str(error))
        if texts:
            there = self._connection if is_here else self._others.connection(to)
            reply = there.script(EFFECTS_ALONE, names, texts)
            self._tell_damaged(to, keys, reply[1:] if isinstance(reply, list) else ())

    def _tell_damaged(self, to: str, keys: Keys, names: Sequence[bytes]) -> None:
        """Logs what was left out. Raises ResponseError where that would lose a job."""
        damaged = [name.decode("utf-8", "replace") for name in names]
        if keys.schedule in damaged:
            raise ResponseError(f'WRONGTYPE the key "{keys.schedule}" is no sorted set')
        for key in dict.fromkeys(damaged):
            self._log.error(DAMAGED_FEATURE, **about(key), shard=to)


def _note(number: bytes, fields: Sequence[bytes]) -> Note:
    """The note with these fields; one that another program has written says nothing."""
    found = dict(zip(fields[::2], fields[1::2], strict=True))
    to = found.get(b"to", b"").decode("utf-8", "replace")
    return Note(number, to, found.get(b"effect", b""))
