"""Moves the jobs of one queue from one shard to another, beside the workers of both.

No script can change two servers, so the jobs travel in pages (docs/internals.md, "How a queue moves
to another shard"). Each step may be repeated, and a page that is under way is found again: the next
process that runs the move goes on where it stopped.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from ...cron.entry import Entry
from ...errors import (
    ForkqError,
    InvalidSchedule,
    MalformedPayload,
    NotPermitted,
    ServerUnavailable,
)
from ...features.cancel.parts import field_in, read_marks
from ...features.marked import can_move
from ...servers import Server
from ...store.scripts import MOVE_CLOSE, MOVE_END, MOVE_PUT, MOVE_TAKE, RULES_CHANGE, SET_ADD
from ...store.server_check import server_info
from ...wire.keys import Keys
from ...wire.marks import KEY, needs_in, needs_newer
from ...wire.payload import DEFAULT_QUEUE, Payload, loads_head, new_jid
from ..changes import set_key
from ..cron import ORIGIN
from ..entry import JobEntry
from ..pages import PAGE, SetPages

# What a page may have in it.
Kind: TypeAlias = Literal["queued", "suspects", "scheduled", "retrying", "dead", "periodic"]
_LISTS: Final[tuple[Kind, ...]] = ("queued", "suspects")
SETS: Final[tuple[Literal["scheduled", "retrying", "dead"], ...]] = (
    "scheduled",
    "retrying",
    "dead",
)

# What one script moves at most: it delays other clients by no more than some milliseconds.
_JOBS: Final = 1000
_BYTES: Final = 1 << 19
# How many values of a page stand for one job.
_VALUES: Final = {
    "queued": 1,
    "suspects": 1,
    "scheduled": 2,
    "retrying": 2,
    "dead": 2,
    "periodic": 5,
}
# Seconds between two looks at the jobs that still run.
_PAUSE: Final = 0.2
# Milliseconds for which a page waits until a replica of the target has it.
_CONFIRMED_IN: Final = 1000
# Where forkq writes its marks in a payload, bytes from the end.
_MARKS: Final = 8192


class _MovePage(NamedTuple):
    """A page that is under way; no ``kind``: none is."""

    move: bytes
    number: bytes
    kind: Kind | Literal[""]
    values: list[bytes]

    @property
    def payloads(self) -> Sequence[bytes]:
        """The payloads of its jobs."""
        size = _VALUES[self.kind]
        return () if self.kind == "periodic" else self.values[size - 1 :: size]


class QueueMove:
    """One queue on its way from ``source`` to ``target``. ``counts`` says how many jobs of each
    kind this process has moved, ``unconfirmed`` how many pages no replica of the target has had in
    time; ``told`` is called after each page, and while it waits."""

    def __init__(
        self, queue: str, source: Server, target: Server, told: Callable[[QueueMove], None]
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.running = self.unconfirmed = 0
        self._queue = queue
        self._source = source
        self._target = target
        self._told = told
        self._name = new_jid()  # counts if the queue has never moved from here
        self._number = b"0"
        self._replicas = _replicas_of(target)

    def run(self, *, wait: bool) -> None:
        """Moves all that there is. ``running`` says how many jobs still run on the source: without
        ``wait`` they are left there. Raises ServerUnavailable, and ForkqError for a job that cannot
        move."""
        self._carry_rules()
        while True:
            self.running = self._read_running()
            if self._pass():
                continue
            if (self.running and not wait) or (not self.running and self._end()):
                return
            self._wait()

    def _pass(self) -> int:
        """Moves what is there now. Returns how many pages."""
        moved = self._deliver(self._take("", ()))
        for kind in _LISTS:
            while pages := self._move(kind, ()):
                moved += pages
        for location in SETS:
            moved += sum(self._move(location, members) for members in self._members(location))
        added = self._periodic()
        some = (added[first : first + 2 * PAGE] for first in range(0, len(added), 2 * PAGE))
        return moved + sum(self._move("periodic", page) for page in some)

    def _move(self, kind: Kind, asked: Sequence[Any]) -> int:
        """Moves one page, and those that another process has under way. Returns how many."""
        if kind not in _LISTS and not asked:
            return 0
        pages = 0
        while True:
            known = self._number
            page = self._take(kind, asked)
            pages += self._deliver(page)
            if page.number == known or page.kind == kind:
                return pages

    def _take(self, kind: Kind | Literal[""], asked: Sequence[Any]) -> _MovePage:
        keys = self._source.keys
        names = (keys.moves, keys.moving(self._queue), *self._places(keys, kind))
        arguments = (self._queue, kind, self._name, self._number, _JOBS, _BYTES, *asked)
        with _naming_shard(self._source):
            name, number, under_way, values = self._source.run(MOVE_TAKE, names, arguments)
        self._number = number
        return _MovePage(name, number, cast("Kind", under_way.decode()), values)

    def _deliver(self, page: _MovePage) -> int:
        """Brings a page to the target, and ends it on the source. Returns 1; 0 if there is none."""
        if not page.kind:
            return 0
        self._refuse_marked(page)
        self._carry_cancels(page)
        keys = self._target.keys
        names = (keys.arrived, *self._places(keys, page.kind, there=True))
        arguments = (self._queue, page.move, page.number, page.kind, *page.values)
        if self._put(names, arguments) < 0:
            return self._deliver_renamed(page)
        if self._close(page, "arrived"):
            self.counts[page.kind] += len(page.values) // _VALUES[page.kind]
        self._told(self)
        return 1

    def _put(self, names: Sequence[str], arguments: Sequence[Any]) -> int:
        """Runs move_put.lua on the target, and waits a moment until a replica has what it did: a
        failover to one that has not got the page would lose it, for the source deletes it next."""
        with _naming_shard(self._target):
            if not self._replicas:
                return int(self._target.run(MOVE_PUT, names, arguments))
            with self._target.connection() as connection:  # WAIT is about what it has sent
                put = int(connection.script(MOVE_PUT, names, arguments))
                [reached] = connection.pipeline([("WAIT", 1, _CONFIRMED_IN)])
        self.unconfirmed += not (isinstance(reached, int) and reached)
        return put

    def _deliver_renamed(self, page: _MovePage) -> int:
        """Brings a page to the target under a new name of the move, if it is still under way: then
        a failover of the source has lost the numbers of later pages, and this one has not arrived.
        """
        self._close(page, "renamed")
        return self._deliver(self._take("", ()))

    def _close(self, page: _MovePage, how: Literal["arrived", "back", "renamed"]) -> int:
        keys = self._source.keys
        names = (keys.moves, keys.moving(self._queue), *self._places(keys, page.kind)[:2])
        arguments = (self._queue, page.move, page.number, how, new_jid())
        with _naming_shard(self._source):
            return int(self._source.run(MOVE_CLOSE, names, arguments))

    def _places(
        self, keys: Keys, kind: Kind | Literal[""], *, there: bool = False
    ) -> tuple[str, ...]:
        """The keys of the scripts for one kind of page; ``there``: on the target."""
        names = (keys.queues, keys.suspected) if there else (keys.suspected,)
        marked = (keys.marked,) if there else ()
        if kind == "periodic":
            return (keys.cron, *names, keys.cron_last, keys.cron_pending, keys.cron_paused)
        if kind == "suspects":
            return (keys.suspects(self._queue), *names, *marked)
        if kind in SETS:
            return (set_key(keys, kind), *names)
        return (keys.queue(self._queue), *names, *marked)

    def _members(self, location: Literal["scheduled", "retrying", "dead"]) -> Iterator[list[bytes]]:
        """The members of a set that belong to the queue, a page at a time."""
        pages = SetPages(self._source, location)
        while True:
            with _naming_shard(self._source):
                entries = pages.next()
            if not entries:
                return
            yield [entry.raw for entry in entries if self._has(entry)]

    def _has(self, entry: JobEntry) -> bool:
        """Whether a job of a set belongs to the queue. JSON may write some names in several
        ways."""
        if self._queue.isalnum() and self._queue.encode() not in entry.raw:
            return False
        return not entry.malformed and entry.queue == self._queue

    def _periodic(self) -> list[bytes]:
        """Name and definition in turn of the periodic jobs of the queue that were added at run
        time. Those of an app are published by its children, on the shard where the queue is."""
        with _naming_shard(self._source):
            [found] = self._source.ask(("HGETALL", self._source.keys.cron))
        pairs = (
            zip(found[::2], found[1::2], strict=True) if isinstance(found, list) else found.items()
        )
        return [value for name, raw in pairs if self._is_added(raw) for value in (name, raw)]

    def _is_added(self, definition: bytes) -> bool:
        try:
            entry = Entry.decode(definition)
        except InvalidSchedule:
            return False
        return entry.origin == ORIGIN and entry.job.get("queue", DEFAULT_QUEUE) == self._queue

    def _carry_cancels(self, page: _MovePage) -> None:
        """The target gets the notes that cancel jobs of the page, before the page: the leader there
        may have closed its own, since it has found those jobs nowhere."""
        with _naming_shard(self._source):
            [noted] = self._source.ask(("HGETALL", self._source.keys.cancelled))
        if not noted:
            return
        marks = read_marks(noted)
        fields = {field_in(marks, job) for job in map(_head, page.payloads) if job}
        notes = (part for field in fields if field for part in (field, marks[field].value))
        if arguments := tuple(notes):
            with _naming_shard(self._target):
                self._target.ask(("HSET", self._target.keys.cancelled, *arguments))

    def _refuse_marked(self, page: _MovePage) -> None:
        """Raises ForkqError for a page with a job whose features this forkq does not know: what
        these have in Redis would stay behind. The page goes back first."""
        marked = next((raw for raw in page.payloads if _has_features(raw)), None)
        if marked is None or not self._bar(page):
            return
        self._close(page, "back")
        job = loads_head(marked)
        raise ForkqError(
            f'the queue "{self._queue}" cannot move: its job {job.get("jid")} ({job.get("class")}) '
            "has features of a newer forkq, and what these have in Redis would stay on the shard "
            f"{self._source.name}; run this command by that version"
        )

    def _bar(self, page: _MovePage) -> bool:
        """Makes the target refuse a page from now on, so that it may go back: a process with a
        newer forkq may bring it there at the same time. False: it has arrived already."""
        names = (self._target.keys.arrived, *self._places(self._target.keys, page.kind, there=True))
        arguments = (self._queue, page.move, page.number, "barred", *page.values)
        with _naming_shard(self._target):
            return bool(self._target.run(MOVE_PUT, names, arguments))

    def _carry_rules(self) -> None:
        """The target gets the pause, and the rules that were changed at run time, before the first
        job. It keeps rules of its own. A move that is run again carries nothing twice: a person may
        have resumed the queue there meanwhile."""
        keys, queue = self._source.keys, self._queue
        with _naming_shard(self._source):
            rules, is_paused, by = self._source.ask(
                ("HGETALL", keys.control(queue)),
                ("SISMEMBER", keys.paused, queue),
                ("HGET", keys.paused_by, queue),
            )
        what = repr((rules, is_paused, by)).encode()
        with _naming_shard(self._target):
            [carried] = self._target.ask(("HGET", self._target.keys.arrived, self._carried))
            if carried == what:
                return
            if rules:
                self._put_rules(rules)
            if is_paused:
                self._pause(by)
            if rules or is_paused:
                self._target.ask(("HSET", self._target.keys.arrived, self._carried, what))

    @property
    def _carried(self) -> str:
        """The field of ``Keys.arrived`` that says which rules and which pause have arrived."""
        return f"{self._queue} rules of {self._source.name}"

    def _put_rules(self, rules: Mapping[Any, Any]) -> None:
        keys = self._target.keys
        names = (keys.controlled, keys.control(self._queue))
        [has_rules] = self._target.ask(("EXISTS", names[1]))
        if not has_rules:
            fields = (part for pair in rules.items() for part in pair)
            self._target.run(RULES_CHANGE, names, (self._queue, *fields))

    def _pause(self, by: bytes | None) -> None:
        keys = self._target.keys
        [was_paused] = self._target.ask(("SISMEMBER", keys.paused, self._queue))
        if by and not was_paused:
            self._target.ask(("HSET", keys.paused_by, self._queue, by))
        self._target.run(SET_ADD, (keys.paused,), (self._queue,))

    def _read_running(self) -> int:
        with _naming_shard(self._source):
            [count] = self._source.ask(("HLEN", self._source.keys.inflight(self._queue)))
        return int(count)

    def _wait(self) -> None:
        """Until one of the jobs that run on the source has ended, or another one is there."""
        keys, running = self._source.keys, self.running
        lists = (keys.queue(self._queue), keys.suspects(self._queue))
        while running and running == self.running:
            self._told(self)
            time.sleep(_PAUSE)
            running = self._read_running()
            with _naming_shard(self._source):
                if any(self._source.ask(*(("LLEN", key) for key in lists))):
                    return

    def _end(self) -> bool:
        """Removes what is left of the queue on the source. False: it has jobs again."""
        keys, queue = self._source.keys, self._queue
        sets = (keys.moves, keys.queues, keys.paused, keys.paused_by, keys.controlled)
        jobs = (keys.queue(queue), keys.suspects(queue), keys.inflight(queue), keys.moving(queue))
        names = (*sets, *jobs, keys.control(queue), keys.bucket(queue), keys.turn(queue))
        with _naming_shard(self._source):
            is_over = bool(self._source.run(MOVE_END, names, (queue,)))
        if is_over:
            with _naming_shard(self._target):
                self._target.ask(("HDEL", self._target.keys.arrived, self._carried))
        return is_over


def _replicas_of(server: Server) -> int:
    """How many replicas the server has; 0 if the user may not ask."""
    with _naming_shard(server), suppress(NotPermitted), server.connection() as connection:
        return int(server_info(connection).get("connected_slaves", 0))
    return 0


def _has_features(payload: bytes) -> bool:
    """Whether the job needs what is beside it in Redis, or a newer forkq."""
    if b'"forkq"' not in payload[-_MARKS:]:
        return False
    marks = _head(payload).get(KEY)
    return needs_newer(marks) or not can_move(needs_in(marks))


def _head(payload: bytes) -> Payload:
    """The job in a payload; empty if there is none."""
    try:
        return loads_head(payload)
    except MalformedPayload:
        return {}


@contextmanager
def _naming_shard(server: Server) -> Iterator[None]:
    """Names the shard in an error, and says what to do."""
    try:
        yield
    except ServerUnavailable as error:
        again = "no job is lost: run the command again, and the move goes on from here"
        error.args = (f"shard {server.name}: {error}; {again}",)
        raise
