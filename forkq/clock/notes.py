"""Carrying notes to the shards that they are for, in the leader's clock (features/notes.py).

A note is deleted once its shard has done what it says. One that is down, or refuses, gets its notes
later, and keeps no other one from theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from ..errors import ForkqError, MalformedPayload
from ..features.effects import packed
from ..features.notes import effect_in
from ..store.connection import RedisConnection, RedisError, ResponseError
from ..store.damage import DAMAGED_FEATURE, about
from ..store.outage import Backoff, Outage
from ..store.scripts import NOTES_CARRY
from ..store.steps import checked
from ..wire.keys import Keys
from ..wire.times import now
from .other_shards import OtherShards
from .tracking import tracked

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# How many notes are read, and carried, in one step.
_PAGE: Final = 100
# And so many bytes, unless one note alone has more: the end of a step has what it has returned.
_BYTES: Final = 1 << 20
# The longest pause between two tries to reach a shard that is down, in seconds: each may hold up
# the clock for as long as it waits for a reply.
_LONGEST_REST: Final = 30.0
_DOWN: Final = "the shard {} does not take what is noted for it; trying again"
_UP: Final = "the shard {} takes what was noted for it"


# Seconds for which a shard knows which clock carries the notes of another one to it.
_CLAIMED_FOR: Final = 86_400
_NOT_CLAIMED: Final = -1  # the reply of a shard that knows none

# The place of a note in its stream.
_Place: TypeAlias = tuple[int, int]


class Note(NamedTuple):
    """One note: its id in the stream, the shard that it is for, and its effect."""

    id: bytes
    to: str
    text: bytes

    @property
    def place(self) -> _Place:
        """Where it stands among the others."""
        milliseconds, _, number = self.id.partition(b"-")
        return int(milliseconds), int(number)


class Rest(NamedTuple):
    """A shard that is down, until which moment (epoch seconds) it is left alone, and where the
    oldest note for it stands."""

    until: float
    oldest: _Place


class NoteCarrier:
    """Carries the notes of one shard. While there are none, nothing is asked.

    A clock that was stopped between reading and carrying must not carry an old note after another
    clock has carried newer ones. So a carrier first tells the other shard that the notes come by it
    from now on, then reads them; and that shard takes none from any other one.
    """

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
        self._name = token_hex(8)
        self._claimed: set[str] = set()  # the shards that take notes from this carrier
        self._notes: list[Note] = []
        self._from: _Place = (0, 0)  # what stands before it is for shards that rest
        self._watch = False
        self._rests: dict[str, Rest] = {}
        self._outages: dict[str, tuple[Outage, Backoff]] = {}

    def load(self, watch: bool) -> None:
        """Reads the next notes."""
        self._watch = watch
        self._notes = self._read(self._from, watch)

    def next_due(self) -> float | None:
        """At once if there is a note; else when a shard that was down is tried again."""
        return 0.0 if self._notes else min((r.until for r in self._rests.values()), default=None)

    def work(self) -> None:
        """Carries a page of notes, and reads the next one: the server does not report this clock's
        own changes."""
        for to in [to for to, rest in self._rests.items() if rest.until <= now()]:
            self._try_again(to)
        page = self._notes
        for to in dict.fromkeys(note.to for note in page):
            if to not in self._rests:
                self._carry(to, [note for note in page if note.to == to])
        if page and all(note.to in self._rests for note in page):
            milliseconds, number = page[-1].place
            self._from = milliseconds, number + 1
        self.load(self._watch)

    def _read(self, first: _Place, watch: bool) -> list[Note]:
        """Reads a page of notes, from that place on."""
        begins = "{}-{}".format(*first)
        asked = ("XRANGE", self._keys.notes, begins, "+", "COUNT", _PAGE)
        found = checked(self._connection.pipeline(tracked(asked, watch)))[-1]
        notes = [_note(*entry) for entry in found]
        sizes = accumulate(len(note.text) for note in notes)
        fitting = [note for note, size in zip(notes, sizes, strict=True) if size <= _BYTES]
        return fitting or notes[:1]

    def _try_again(self, to: str) -> None:
        """Carries the oldest notes for a shard that was down. If it takes them, the others are read
        from there on; else only these were read."""
        oldest = self._rests[to].oldest
        notes = [note for note in self._read(oldest, watch=False) if note.to == to]
        if not notes or self._carry(to, notes):
            del self._rests[to]
            self._from = min(self._from, oldest)
            self.load(self._watch)

    def _carry(self, to: str, notes: Sequence[Note]) -> bool:
        """Has that shard do what these notes say, and deletes them. Returns whether it is there. To
        one that has taken none from this carrier yet, or not for a day, they are carried once they
        were read anew."""
        try:
            is_done = to in self._claimed and self._send(to, notes)
            if not is_done:
                self._claim(to)
        except (RedisError, ForkqError) as error:
            self._let_rest(to, notes[0].place, error)
            return False
        if is_done:
            self._connection.call("XDEL", self._keys.notes, *(note.id for note in notes))
        if to in self._outages:
            self._outages.pop(to)[0].end()
        return True

    def _let_rest(self, to: str, oldest: _Place, error: Exception) -> None:
        """Leaves a shard alone that has not taken the notes from that place on."""
        if to not in self._outages:
            outage = Outage(self._log, _DOWN.format(to), _UP.format(to))
            self._outages[to] = outage, Backoff(longest=_LONGEST_REST)
        outage, backoff = self._outages[to]
        outage.begin(error)
        self._rests[to] = Rest(now() + backoff.pause(), oldest)

    def _reach(self, to: str) -> tuple[RedisConnection, Keys]:
        """The connection to that shard, and the names of its keys; "" is this one."""
        if to in ("", self._others.own):
            return self._connection, self._keys
        keys = self._others.keys(to)
        return self._others.connection(to), keys

    def _claim(self, to: str) -> None:
        """Tells that shard that the notes of this one come by this carrier from now on."""
        there, keys = self._reach(to)
        there.call("SET", keys.carrier(self._others.own), self._name, "EX", _CLAIMED_FOR)
        self._claimed.add(to)

    def _send(self, to: str, notes: Sequence[Note]) -> bool:
        """Has that shard do what these notes say. False if it is to be told again first who carries
        them. Raises ResponseError if it does nothing, or where a job would be lost."""
        there, keys = self._reach(to)
        names, ends = list[Any]([keys.carrier(self._others.own)]), keys.totals("ends")
        said, texts = list[Note](), list[str]()
        for note in notes:
            try:
                texts.append(packed([effect_in(note.text, keys.prefix)], names, ends))
                said.append(note)
            except MalformedPayload as error:
                self._leave_out(note, error)
        if texts:
            replies = there.script(NOTES_CARRY, names, (self._name, _CLAIMED_FOR, *texts))
            if replies == _NOT_CLAIMED:
                return False
            self._judge(to, keys, said, replies)
        return True

    def _judge(self, to: str, keys: Keys, notes: Sequence[Note], replies: Any) -> None:
        """Notes what the shard says of each note."""
        if not replies:
            self._claimed.discard(to)
            raise ResponseError("another clock carries them")
        damaged = [name for each in replies if isinstance(each, list) for name in each[1:]]
        self._tell_damaged(to, keys, damaged)
        for note, reply in zip(notes, replies, strict=True):
            if isinstance(reply, ResponseError):
                self._leave_out(note, reply)

    def _leave_out(self, note: Note, error: Exception) -> None:
        self._log.error("a note is left out", note=repr(note.text[:200]), error=str(error))

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
