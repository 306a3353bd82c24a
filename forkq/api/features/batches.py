"""Batches, looked at and acted on from any process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar, Final, Literal, TypeAlias, TypeVar, cast

from ...cancelling import note_cancelled
from ...errors import ForkqError, ServerUnavailable, shown
from ...features.batch.parts import EVENTS, Event, number_in
from ...features.batch.pause import field_of_pause
from ...features.cancel.parts import field_of_batch
from ...servers import Server, Servers, first_found
from ...store.scripts import BATCH_CHANGE, FLOW_CHANGE
from ...wire.marks import PAUSED
from ...wire.times import now
from ..bulk import Outcome, together
from ..door import servers as all_servers
from ..filters import Filter
from ..job_sets import DeadSet, ScheduledSet

T = TypeVar("T")
BatchState: TypeAlias = Literal["open", "broken", "waiting", "finished", "succeeded", "cancelled"]

# Nothing of such a batch waits or runs.
_ENDED: Final = ("finished", "succeeded")
# An open batch whose block has pushed nothing for so many seconds may have lost its pusher.
_SILENT_FOR: Final = 3600.0
_PAGE: Final = 500  # batches that are read at once
_MOST: Final = 10_000  # that a list has


@dataclass(frozen=True, slots=True)
class BatchReport:
    """A batch as it was when it was read. ``total`` members, of which ``done``, ``dead`` and
    ``otherwise`` have ended, the last as expired, cancelled, discarded, dropped or deleted.

    ``state``: "open": its block runs; "broken": its block has raised, and nothing ends it by
    itself; "waiting": for members; "finished": no member will run any more, but not all are done;
    "succeeded"; "cancelled": its members end. ``fired``: when the time of an event came (epoch
    seconds). ``failing`` and ``dead_jids`` are jids of members, of the first 1,000. ``children``:
    the batches that are its members, ``parent``: the one of which it is a member, or "".
    ``silent_for``: for how many seconds an open batch has got no member. ``paused_at``: since when
    it is paused (epoch seconds); 0 if it is not.
    """

    bid: str
    name: str
    state: BatchState
    total: int
    done: int
    dead: int
    otherwise: int
    made_at: float
    fired: dict[Event, float]
    failing: tuple[str, ...]
    dead_jids: tuple[str, ...]
    children: tuple[str, ...]
    parent: str
    silent_for: float
    shard: str
    paused_at: float = 0.0

    @property
    def waiting(self) -> int:
        """How many members have not ended: they wait, run, or are retried."""
        return max(0, self.total - self.done - self.dead - self.otherwise)

    @property
    def may_be_abandoned(self) -> bool:
        """Whether it is open, but has got no member for an hour: its pusher may be dead."""
        return self.state == "open" and self.silent_for > _SILENT_FOR


@dataclass(frozen=True, slots=True)
class FlowReport(BatchReport):
    """A batch that is a flow: its members are its steps."""


class BatchEntry:
    """The batch of that id, to look at and to act on: ``forkq.api.Batch(bid)``. Each call asks
    Redis, and raises ForkqError if there is no such batch (any more), and ServerUnavailable."""

    _noun: ClassVar[str] = "batch"
    _command: ClassVar[str] = "forkq batches"

    def __init__(self, bid: str, where: Server | Servers | None = None) -> None:
        if type(bid) is not str or not bid:
            raise ForkqError(f"{shown(bid)} is no id of a batch: pass `batch.bid`")
        self.bid = bid
        self._where = where

    def report(self) -> BatchReport:
        """How far it has come."""
        return self._found()[1]

    def seal(self) -> None:
        """Ends a block that cannot end by itself: it has raised, or its process is dead. What was
        pushed is all that there is; its callbacks come when that has ended."""
        server, report = self._found()
        if isinstance(report, FlowReport):
            raise ForkqError(
                f"{self.bid} is a flow, whose steps are pushed by one call: cancel it instead"
            )
        _change(server, report, "seal")

    def cancel(self) -> None:
        """Cancels all its members, and the batches within it. It takes no more. Those that wait and
        run end as by ``forkq.cancel``; then ``on_finish`` is pushed. Raises ForkqError if it has
        ended."""
        server, report = self._found()
        if report.state in _ENDED:
            raise ForkqError(f"the batch {self.bid} has {report.state}: nothing of it is left")
        fields = [(field_of_batch(bid), "") for bid in _cancel(server, report)]
        _on_each(self._with_members(server), lambda one: _note_cancelled(one, fields))

    def pause(self) -> None:
        """Keeps its members that wait from being run, and those of the batches within it, until
        ``resume``. What runs goes on; what is pushed into it waits with the others. Raises
        ForkqError if nothing of it is left to run."""
        server, report = self._found()
        if report.state in (*_ENDED, "cancelled"):
            raise ForkqError(f"the batch {self.bid} has ended ({report.state}): nothing to pause")
        field = (field_of_pause(self.bid), "")
        _on_each(self._with_members(server), lambda one: note_cancelled([one], [field], None))

    def resume(self) -> Outcome:
        """Ends its pause: what has come to its turn meanwhile goes to its queue now. Where it is
        not paused, this changes nothing."""
        server, _ = self._found()
        parts = _on_each(self._with_members(server), lambda one: _resume(one, self.bid))
        return reduce(together, parts)

    def retry_dead(self) -> Outcome:
        """Sends its dead members and callbacks to their queues now, and those of the batches within
        it. If all are done then, ``on_success`` is pushed. Raises ForkqError if it is
        cancelled."""
        server, report = self._found()
        if report.state == "cancelled":
            raise ForkqError(f"the batch {self.bid} is cancelled: retry its jobs one by one")
        mine = Filter(batch=self.bid)
        parts = _on_each(self._with_members(server), lambda one: DeadSet(one).retry_all(mine))
        return reduce(together, parts)

    def _with_members(self, home: Server) -> list[Server]:
        """The servers that may have members of the batch: all shards, its own one first."""
        others = all_servers() if home.name else ()
        return [home, *(each for each in others if each.name != home.name)]

    def _found(self) -> tuple[Server, BatchReport]:
        def look(server: Server) -> tuple[Server, BatchReport] | None:
            found = _read(server, [self.bid])
            return (server, found[0]) if found else None

        found = first_found(self._where or all_servers(), look)
        if found is None:
            raise ForkqError(
                f"there is no {self._noun} {shown(self.bid)}: it is kept for 180 days after its "
                f"last change (`{self._command}` lists them)"
            )
        return found


def batch_reports(bids: Sequence[str], server: Server) -> list[BatchReport]:
    """Reads these batches of one server, and leaves out those that are gone. Raises
    ServerUnavailable."""
    return _read(server, bids)


def batches(where: Server | Iterable[Server] | None = None) -> list[BatchReport]:
    """All batches that are no flows, the one that changed last first: of each server the latest
    10,000. Raises ServerUnavailable."""
    return [report for report in reports(where) if not isinstance(report, FlowReport)]


def reports(where: Server | Iterable[Server] | None = None) -> list[BatchReport]:
    """All batches and flows, the one that changed last first: of each server the latest 10,000.
    Raises ServerUnavailable."""
    servers = where or all_servers()
    found: list[BatchReport] = []
    for server in (servers,) if isinstance(servers, Server) else servers:
        keys = server.keys
        [names] = server.ask_leniently(("ZRANGE", keys.batches, 0, _MOST - 1, "REV"))
        before = keys.batch("")
        bids = [name.decode("utf-8", "replace").removeprefix(before) for name in names or ()]
        for at in range(0, len(bids), _PAGE):
            found += _read(server, bids[at : at + _PAGE])
    return found


def _change(server: Server, report: BatchReport, what: str) -> None:
    """Each change may be repeated, and tells the batches above."""
    above, parent = list[str](), report.parent
    while parent and parent not in above:
        above.append(parent)
        found = _read(server, [parent])
        parent = found[0].parent if found else ""
    arguments = (1 + len(above), what)
    if not isinstance(report, FlowReport):
        server.run(BATCH_CHANGE, server.keys.of_batch(report.bid, above), arguments)
        return
    names = server.keys.of_flow(report.bid, above)
    while (said := server.run(FLOW_CHANGE, names, arguments)) and said[1]:
        pass


def _on_each(servers: Iterable[Server], act: Callable[[Server], T]) -> list[T]:
    """What the action says of each server. One that is down keeps no other one from it, and its
    ServerUnavailable comes at the end."""
    found, down = list[T](), None
    for server in servers:
        try:
            found.append(act(server))
        except ServerUnavailable as error:
            down = down or error
    if down is not None:
        raise down
    return found


def _note_cancelled(server: Server, fields: Sequence[tuple[str, str]]) -> None:
    """Notes on that server which batches are cancelled. They are paused no more: a member that was
    put off ends where it waits."""
    note_cancelled([server], fields, None)
    bids = [field.partition(":")[2] for field, _ in fields]
    server.ask(("HDEL", server.keys.cancelled, *map(field_of_pause, bids)))


def _resume(server: Server, bid: str) -> Outcome:
    """Ends the pause on that server, and sends the members that were put off to their queues. One
    that a child puts off at this very moment comes later."""
    server.ask(("HDEL", server.keys.cancelled, field_of_pause(bid)))
    put_off = Filter(batch=bid, match=f'"{PAUSED}":"{bid}"')
    return ScheduledSet(server).add_all_to_queue(put_off)


def _cancel(home: Server, batch: BatchReport) -> Iterator[str]:
    """Cancels a batch, and then what is within it: from then on it gets nothing further. Yields the
    id of each."""
    _change(home, batch, "cancel")
    yield batch.bid
    for cancelled in _read(home, [batch.bid]):
        for child in _read(home, cancelled.children):
            if child.state not in _ENDED:
                yield from _cancel(home, child)


def _read(server: Server, bids: Sequence[str]) -> list[BatchReport]:
    """What Redis has of these batches, without those that are gone."""
    if not bids:
        return []
    keys = server.keys
    paused = ("HMGET", keys.cancelled, *map(field_of_pause, bids))
    asked = (("HGETALL", keys.batch(bid)) for bid in bids)
    pauses, *found = server.ask_leniently(paused, *asked)
    rows = zip(bids, found, pauses or [None] * len(bids), strict=True)
    return [
        _report(server, bid, _texts(fields), number_in(at)) for bid, fields, at in rows if fields
    ]


def _texts(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    return {str(k, "utf-8", "replace"): str(v, "utf-8", "replace") for k, v in fields.items()}


def _report(
    server: Server, bid: str, fields: dict[str, str], paused_at: float = 0.0
) -> BatchReport:
    fired = {e: number_in(fields.get(f"fired_{e[0]}")) for e in EVENTS if f"fired_{e[0]}" in fields}
    total, done, dead, other, void = (
        int(number_in(fields.get(n))) for n in ("total", "done", "dead", "other", "void")
    )
    total, done = total - void, done - void  # places that no member has
    state = fields.get("state", "")
    if state == "sealed":
        state = "succeeded" if "success" in fired else "waiting"
        if "finish" in fired and state == "waiting" and done + dead + other >= total:
            state = "finished"
    listed = {
        kind: tuple(v for k, v in fields.items() if k.startswith(f"{kind}:")) for kind in _LISTED
    }
    before = server.keys.batch("")
    kind = FlowReport if "flow" in fields else BatchReport
    return kind(
        *(bid, fields.get("name", ""), cast("BatchState", state), total, done, dead, other),
        *(number_in(fields.get("at")), fired, listed["failing"], listed["dead"]),
        tuple(key.removeprefix(before) for key in listed["child"]),
        fields.get("parent", ""),
        max(0.0, now() - number_in(fields.get("pushed_at"))),
        server.name,
        paused_at,
    )


_LISTED: Final = ("failing", "dead", "child")
