"""One real task for each of forkq's scripts, in the order of a job's life: pushed, fetched,
retried, buried, returned after a death, found, moved, restored; then cron, leader and counters.

A server of another make may lack a command, count in floats, or refuse a key. So each reply is
compared with the one that Redis gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from ..features.cancel import parts as cancel
from ..features.effects import Effect, packed
from ..store import scripts
from ..store.connection import Call
from ..wire.keys import Keys
from .memory_trials import remembered
from .trial import Trial

_IDENTITY: Final = "conformance:1:0123456789ab"
_OWNER: Final = f"{_IDENTITY}/"
_SOLO: Final = "conformance:1:0123456789ab:solo1/"
_CLASS: Final = "Conformance"
_JID: Final = "{:024x}".format
# Seconds for which a script is asked to keep something.
_KEPT: Final = 60
_AHEAD: Final = 3600.0
_MUCH: Final = 1 << 20  # bytes


def trials(keys: Keys, now: float) -> list[Trial]:
    """The tasks of the scripts that master, children and clock use, in order: each needs what those
    before have left. ``now``: epoch seconds."""
    story = _Story(keys, now)
    return [
        *story.fetched_and_ended(),
        *story.returned(),
        *story.run_alone(),
        *story.limited(),
        *story.scheduled(),
        *story.marked(),
        *story.cancelled(),
        *remembered(keys),
        *story.periodic(),
        *story.counted(),
    ]


def trials_by_hand(keys: Keys, now: float) -> list[Trial]:
    """The tasks of the scripts that only commands, pages and the API use, under keys of their own:
    who runs jobs may lack the rights for them."""
    story = _Story(keys, now)
    return [*story.found_and_moved(), *story.given_to_another_shard()]


def _payload(number: int) -> bytes:
    job = '{"class":"%s","args":[%d],"queue":"q","jid":"%s"}'
    return (job % (_CLASS, number, _JID(number))).encode()


_FIRST, _SECOND, _THIRD, _FOURTH = map(_payload, range(1, 5))


class _Story:
    """The jobs of one queue, under a prefix that no process uses."""

    def __init__(self, keys: Keys, now: float) -> None:
        self._keys = keys
        self._now = now
        self._lists = keys.lists_and_leases(["q"])
        self._inflight = keys.inflight("q")
        self._awaited = keys.awaited("q")
        self._marked = [keys.marked, keys.totals("ends")]

    def fetched_and_ended(self) -> Iterator[Trial]:
        """Push, fetch, acknowledge, retry, bury."""
        keys = self._keys
        yield Trial(Call(scripts.SET_ADD, [keys.queues], ["q"]), 1)
        yield Trial(("LPUSH", keys.queue("q"), _FIRST, _SECOND, _THIRD, _FOURTH), 4)
        yield Trial(Call(scripts.QUEUES_IN_FLIGHT, [keys.fetched], ["q"]))
        yield self._fetch(1, _FIRST, _SECOND, _THIRD)
        newest_first = [*self._leased(3, _THIRD), *self._leased(2, _SECOND)]
        yield Trial(
            Call(scripts.LEASES_OF_OWNER, [self._inflight], [_OWNER, 1, "", _MUCH, _MUCH]),
            [0, b"", *newest_first, *self._leased(1, _FIRST)],
        )
        yield Trial(Call(scripts.MARK_FAILED, [self._inflight], [f"{_OWNER}1", _FIRST]), 1)
        at = self._now + _AHEAD
        ends = [self._inflight, keys.retry, self._awaited, keys.bucket("q")]
        yield Trial(Call(scripts.RETRY, ends, [f"{_OWNER}1", at, _FIRST, 1]), 1)
        bounds = [self._now - _AHEAD, 100]
        burial = [f"{_OWNER}2", self._now, "", *bounds]
        yield Trial(Call(scripts.BURY, [self._inflight, keys.dead, self._awaited], burial), 1)
        yield self._fetch(4, _FOURTH, done=3)

    def returned(self) -> Iterator[Trial]:
        """What was leased ahead, and what a child had when it stopped, goes back to the head."""
        keys = [self._keys.queues, *self._keys.of_returns(["q"])]
        yield Trial(Call(scripts.LEASE_RETURN, keys, [_OWNER, 1, 4]), 1)
        yield self._fetch(5, _FOURTH)
        yield Trial(Call(scripts.REQUEUE, keys, [_OWNER, 0, _MUCH]), [1, 0])
        yield self._fetch(6, _FOURTH)

    def run_alone(self) -> Iterator[Trial]:
        """Suspects, and the jobs of a class that kills processes."""
        keys = self._keys
        alone = [keys.suspects("q"), keys.queue("q"), keys.suspected, keys.queues]
        lists = [self._inflight, keys.suspects("q"), keys.suspected, keys.queue("q")]
        freed = [keys.held_classes, self._awaited, keys.bucket("q")]
        yield Trial(Call(scripts.ISOLATE, [*lists, *freed], [f"{_OWNER}6", "q", "", 0]), 1)
        yield Trial(self._fetch_of_a_solo_child(), [0, 0, [], [], 1, _FOURTH])
        yield Trial(self._recover(f"{_SOLO}7", "isolate"), 1)
        deaths = [keys.deaths_of_class(_CLASS), keys.held_classes, keys.released_classes]
        yield Trial(Call(scripts.CLASS_DEATH, deaths, [_CLASS, _IDENTITY, _KEPT, 1]), 1)
        wanted = ["q", 0, 100, 1, f'"class":"{_CLASS}"']
        yield Trial(Call(scripts.CLASS_JOBS, alone, wanted), [-1, 1])
        held = [keys.held_classes, keys.released_classes, keys.deaths_of_class(_CLASS)]
        yield Trial(Call(scripts.CLASS_RELEASE, held, [_CLASS]), 1)
        yield self._fetch(8, _FOURTH)
        yield Trial(self._recover(f"{_OWNER}8", "isolate"), 1)
        yield Trial(Call(scripts.SUSPECTS_RETURN, alone, ["q", 10]), [1, 0])
        yield Trial(Call(scripts.SET_ADD, [keys.suspected], ["q"]), 1)
        forgets = [keys.suspected, keys.suspects("q")]
        yield Trial(Call(scripts.SUSPECTS_FORGET, forgets, ["q"]), 1)

    def limited(self) -> Iterator[Trial]:
        """A limit and a rate, both changed at run time."""
        rules = [self._keys.controlled, self._keys.control("q")]
        yield Trial(("LPUSH", self._keys.queue("q"), _FIRST, _SECOND), 3)
        yield Trial(Call(scripts.RULES_CHANGE, rules, ["q", "limit", 1]))
        yield Trial(self._fetch_by_rules(10), _told("full", _FOURTH))
        rate = ["q", "limit", "", "rate", f"1/{_AHEAD:.0f}"]
        yield Trial(Call(scripts.RULES_CHANGE, rules, rate))
        yield Trial(self._fetch_by_rules(11), _told("dry", _FIRST))
        yield Trial(Call(scripts.RULES_CHANGE, rules, ["q", "rate", ""]))
        yield self._fetch(12, _SECOND)

    def scheduled(self) -> Iterator[Trial]:
        """A job that is due goes from the schedule to its queue."""
        keys, due = self._keys, self._now - 1
        fixed = [keys.schedule, keys.queues, keys.dead, keys.suspected, *self._marked]
        lists = [*fixed, keys.queue("q"), keys.suspects("q")]
        yield Trial(("ZADD", keys.schedule, due, _FIRST, self._now + _AHEAD, _SECOND), 2)
        yield Trial(Call(scripts.FIRST_DUE, [keys.schedule], []), _is_about(due))
        found = Call(scripts.DUE_JOBS, fixed, [self._now, 10, _MUCH])
        yield Trial(found, lambda reply: reply[1:] == [[], _FIRST])
        move = [self._now, 10, _MUCH, 1, 0, "", _FIRST, _FIRST]
        yield Trial(Call(scripts.DUE_JOBS, lists, move), lambda reply: reply[1:] == [[]])

    def marked(self) -> Iterator[Trial]:
        """A job that expires is pushed; it ends in the hands of a child, and in its queue."""
        keys, queue, (index, ends) = self._keys, self._keys.queue("e"), self._marked
        payload = b'{"class":"%s","forkq":{"needs":{"expires_at":\x01}}}' % _CLASS.encode()
        shared = [keys.queues, keys.schedule, index, ends]
        over = ["", 1, "e", -_AHEAD, "+inf", _CLASS, "", payload]
        yield Trial(Call(scripts.PUSH, [*shared, queue], over), 1)
        yield Trial(("ZRANGE", index, 0, 0, "WITHSCORES"), self._is_an_hour_ago)
        looked = Call(scripts.EXPIRED_JOBS, [queue, ends], [0, 10, _MUCH])
        yield Trial(looked, [0, 1, b"", 0, 0, 0])
        lists = [index, keys.suspects("e"), queue, keys.inflight("e")]
        yield Trial(Call(scripts.MARKED_LOOK, lists, ["e", 0, self._now]), 1)
        yield Trial(("HSET", keys.inflight("e"), f"{_OWNER}1", payload), 1)
        leased = [keys.inflight("e"), keys.awaited("e"), keys.bucket("e"), ends]
        yield Trial(Call(scripts.END, leased, [f"{_OWNER}1", "expired", _CLASS, 1]), 1)
        yield Trial(("HGET", ends, f"{_CLASS}|expired"), b"2")
        yield from self._guarded(payload, [*shared, queue])
        yield from self._newest(payload)
        yield from self._batched()
        yield from self._noted()
        yield from self._flowing()
        yield from self._answered()
        yield from self._debounced()

    def _guarded(self, payload: bytes, shared: Sequence[str]) -> Iterator[Trial]:
        """A lock, a jid that is known and a window each keep a second job out."""
        keys = self._keys
        lock = keys.unique("d")
        again = [1, "e", "", "+inf", _CLASS, "l", 1000 * _KEPT, "p", payload, _JID(2)]
        names = [*shared, lock, keys.doubted]
        both = ["l", 2, *again[1:-1], _JID(1), *again[-2:]]
        yield Trial(
            Call(scripts.PUSH, [*shared, lock, *names[-2:]], both), [1, 1, _JID(1).encode()]
        )
        yield from self._doubted(names, ["l", *again])
        known = ["k", 1, "e", "", "", _CLASS, "k", payload, _JID(3)]
        once = [*shared, keys.pushed(_JID(3))]
        yield Trial(Call(scripts.PUSH, once, known), 1)
        yield Trial(Call(scripts.PUSH, once, known), [1, 2])
        slow = ["w", 2, "e", "", "", _CLASS, "w", 1, 1000 * _KEPT, payload, payload]
        windows = [*shared, keys.window("d"), keys.window("d")]
        yield Trial(Call(scripts.PUSH, windows, slow), [1, 1, b""])
        frees = f'[1, ["unlock", 2, "{_JID(2)}"]]'
        yield Trial(Call(scripts.EFFECTS_ALONE, [self._marked[1], lock], [frees]), 1)
        yield Trial(("HGET", lock, "jid"), None)

    def _newest(self, payload: bytes) -> Iterator[Trial]:
        """At most one job waits: the second push takes the place of the first, and is run."""
        keys = self._keys
        [lock, *others] = keys.of_ticket("n", "e")
        shared = [keys.queues, keys.schedule, keys.retry, keys.marked, self._marked[1]]
        names = [*shared, keys.tickets, keys.doubted, keys.results_ended, keys.queue("e"), lock]
        pushes = [(10, "e", "", 0, payload, _JID(n), _CLASS, _KEPT, 0, "", 0) for n in (1, 2)]
        yield Trial(Call(scripts.PUSH_NEWEST, names, [*pushes[0], *pushes[1]]), [1, 1, 1])
        yield Trial(("HSET", keys.inflight("e"), f"{_OWNER}3", payload), 1)
        started = [f"{_OWNER}3", _JID(1), _CLASS, _KEPT * 1000, "e", 1]
        start = Call(scripts.TICKET_START, [keys.inflight("e"), lock, *others], started)
        yield Trial(start, b"newer")
        ended = f'[1, ["ticket_ends", 2, "{_JID(2)}", "{_CLASS}", 1000, "e"]]'
        yield Trial(Call(scripts.EFFECTS_ALONE, [self._marked[1], lock, *others], [ended]), 1)
        yield Trial(("EXISTS", lock), 0)
        yield Trial(("DEL", keys.inflight("e")), 1)

    def _debounced(self) -> Iterator[Trial]:
        """The second push of a debounced job takes the place of the first, and waits for more."""
        keys, ends, lock = self._keys, self._marked[1], self._keys.unique("b")
        rows = [(_THIRD, _JID(3)), (_FOURTH, _JID(4))]
        pushes = [
            each for row in rows for each in (*row, _CLASS, _AHEAD, 2 * _AHEAD, 0, "", "", "", 0)
        ]
        names = [keys.schedule, ends, keys.results_ended, lock, lock]
        yield Trial(Call(scripts.PUSH_DEBOUNCED, names, pushes), [1, 1, 1])
        yield Trial(("ZREM", keys.schedule, _THIRD, _FOURTH), 1)
        yield Trial(("HGET", lock, "member"), _FOURTH)
        freed = [lock, keys.tickets, keys.schedule]
        yield Trial(Call(scripts.LOCK_FREE, freed, [_JID(4)]), 1)

    def _doubted(self, names: Sequence[str], again: Sequence[Any]) -> Iterator[Trial]:
        """A push meets a doubted lock: its job is found, and then is gone."""
        keys, waiting, payload = self._keys, self._keys.queue("f"), again[-2]
        yield Trial(("LPUSH", waiting, _FIRST), 1)
        looked = Call(
            scripts.FIND_JOBS, [waiting, keys.inflight("f")], ["list", 0, 10, _MUCH, _JID(1)]
        )
        yield Trial(looked, [b"", 1, b"", _FIRST])
        looked = Call(scripts.FIND_JOBS, [keys.retry], ["set", 0, 10, _MUCH, _JID(9)])
        yield Trial(looked, [b""])
        yield Trial(("DEL", waiting), 1)
        yield Trial(Call(scripts.DOUBT_SURE, [names[-1], names[-2]], [0, _JID(1)]), 1)
        yield Trial(("HSET", names[-2], "sure", 1), 0)
        yield Trial(Call(scripts.PUSH, names, again), [1, _JID(1).encode()])
        over = Call(scripts.DOUBT_OVER, names, [*again, _JID(1), 1, b" " + payload])
        yield Trial(over, 1)
        yield Trial(("LPOP", names[-3]), payload)
        freed = [names[-2], keys.tickets, keys.schedule]
        yield Trial(Call(scripts.LOCK_FREE, freed, [_JID(1)]), 0)

    def cancelled(self) -> Iterator[Trial]:
        """A job is cancelled, and found in each place; it ends in the hands of a child."""
        keys, jid = self._keys, _JID(1)
        notes, field = [keys.cancelled, keys.cancelled_lately], f"jid:{_JID(1)}"
        cursor = keys.iteration(jid)
        yield Trial(
            Call(scripts.CANCEL, [keys.cancelled, cursor], [10, "", field, jid, "class:None", ""]),
            1,
        )
        yield Trial(("LPUSH", keys.queue("c"), _FIRST), 1)
        yield Trial(("ZADD", keys.retry, self._now + _AHEAD, _FIRST))
        yield Trial(("HSET", keys.inflight("c"), f"{_OWNER}1", _FIRST), 1)
        for kind, key, place in (
            ("list", keys.queue("c"), [b"", 0, 1, _FIRST]),
            ("set", keys.retry, [b""]),
            ("hash", keys.inflight("c"), [b""]),
        ):
            page = [kind, 0, 10, _MUCH, 1]
            looked = Call(scripts.CANCELLED_JOBS, [keys.cancelled, key], page)
            yield Trial(looked, [*place, _FIRST])
        leased = [keys.inflight("c"), keys.awaited("c"), keys.bucket("c"), self._marked[1]]
        ended = [f"{_OWNER}1", "cancelled", _CLASS, 0]
        ended.append(packed(cancel.effects(keys, jid), leased, self._marked[1]))
        yield Trial(Call(scripts.END, leased, ended), 1)
        yield Trial(("HLEN", keys.cancelled), 1)
        closed = Call(scripts.CANCEL_CLOSED, notes, [10, 60, "class:None", "other"])
        yield Trial(closed, 0)
        yield Trial(("DEL", keys.queue("c"), keys.cancelled), 2)

    def _answered(self) -> Iterator[Trial]:
        """A job with a result gives way to a newer one: its result is written."""
        keys, result, note = self._keys, self._keys.result(_JID(1)), f"replaced {_JID(1)}"
        waits = f'[1, ["result", 2, "waiting", {1000 * _KEPT}]]'
        yield Trial(Call(scripts.EFFECTS_ALONE, [self._marked[1], result], [waits]), 1)
        yield Trial(("RPUSH", keys.results_ended, note), 1)
        written = [note, "waiting", "ended", 1000 * _KEPT]
        yield Trial(Call(scripts.RESULTS_ENDED, [keys.results_ended, result], written), 1)
        yield Trial(("GET", result), b"ended")
        yield Trial(("DEL", result), 1)

    def _noted(self) -> Iterator[Trial]:
        """A job that is due on another shard is noted, and what the note says is done."""
        keys, names = self._keys, list[Any]()
        due = Effect("due", keys.schedule, (_SECOND.decode(),), (keys.pushed(_JID(1)),))
        effects = (Effect("note", keys.notes, ("other", "text")), due)
        asked = packed(effects, names, self._marked[1])
        yield Trial(Call(scripts.EFFECTS_ALONE, names, [asked]), 1)
        yield Trial(("XLEN", keys.notes), 1)
        yield Trial(("ZREM", keys.schedule, _SECOND), 1)
        yield Trial(("DEL", keys.notes, keys.pushed(_JID(1))), 2)
        told = [keys.carrier("other")]
        text = packed([due], told, self._marked[1])
        yield Trial(("SET", told[0], "me", "EX", _KEPT), b"OK")
        yield Trial(Call(scripts.NOTES_CARRY, told, ["me", _KEPT, text]), [1])
        yield Trial(("ZREM", keys.schedule, _SECOND), 1)
        yield Trial(("DEL", told[0], keys.pushed(_JID(1))), 2)

    def _batched(self) -> Iterator[Trial]:
        """A member is pushed into a batch, and ends; the callback goes to the schedule."""
        keys = self._keys
        names, ends = keys.of_batch("b", ()), self._marked[1]
        fields = ["calls", "f", "on_f", _SECOND]
        yield Trial(Call(scripts.BATCH_CHANGE, names, [1, "open", "", *fields]), b"open")
        payload = b'{"forkq":{"needs":{"batch":{"i":\x02}}}}'
        pushed = ["b", 1, "b", "", "+inf", _CLASS, "b", "", payload]
        shared = [keys.queues, keys.schedule, self._marked[0], ends, keys.queue("b"), *names[:2]]
        yield Trial(Call(scripts.PUSH, shared, pushed), 1)
        yield Trial(("RPOP", keys.queue("b")), payload.replace(b"\x02", b"0"))
        yield Trial(Call(scripts.BATCH_CHANGE, names, [1, "seal"]), b"sealed")
        ended = f'[1, ["batch", 2, 1, 0, 1, "done", "{_JID(1)}"]]'
        yield Trial(Call(scripts.EFFECTS_ALONE, [ends, *names], [ended]), 1)
        yield Trial(("HGET", names[0], "done"), b"1")
        yield Trial(("ZREM", keys.schedule, _SECOND), 1)
        yield Trial(("ZREM", keys.marked, "b"), 1)

    def _flowing(self) -> Iterator[Trial]:
        """A flow of two steps: the end of the first one starts the second."""
        keys, ends = self._keys, self._marked[1]
        names = keys.of_flow("f", ())
        steps = [*(0, "a", _FIRST, "", 1, "1w"), *(1, "b", _SECOND, "", 1, "")]
        pushed = Call(scripts.FLOW_PUSH, names, [1, "", 2, "0r", 2, "flow", 2, *steps])
        yield Trial(pushed, b"sealed")
        yield Trial(pushed, b"sealed")
        yield Trial(("ZREM", keys.schedule, _FIRST, _SECOND), 1)
        ended = f'[1, ["flow", 2, 1, 0, 1, "done", "{_JID(1)}", "end"]]'
        yield Trial(Call(scripts.EFFECTS_ALONE, [ends, *names], [ended]), 1)
        yield Trial(("ZREM", keys.schedule, _FIRST, _SECOND), 1)
        yield Trial(("HGET", names[-2], "end:0"), b"end")
        grafts = Call(scripts.FLOW_GRAFT, names, [1, 1, 9, "add", "c", _THIRD, "", 1, "a", "w"])
        yield Trial(grafts, 1)
        yield Trial(("ZREM", keys.schedule, _THIRD), 1)
        yield Trial(Call(scripts.FLOW_CHANGE, names, [1, "cancel"]), [b"cancelled", 0])

    def _is_an_hour_ago(self, reply: list[Any]) -> bool:
        """Whether a queue is to be looked at since an hour ago, by the server's clock."""
        [(name, moment)] = zip(reply[::2], reply[1::2], strict=True) if len(reply) == 2 else reply
        return name == b"e" and abs(float(moment) - (self._now - _AHEAD)) < _AHEAD / 2

    def found_and_moved(self) -> Iterator[Trial]:
        """What commands and pages do: read in pages, look for a jid, delete, and undo that."""
        keys, queue = self._keys, self._keys.queue("q")
        yield Trial(("LPUSH", queue, _FIRST), 1)
        yield Trial(("ZADD", keys.dead, self._now, _SECOND), 1)
        yield Trial(("HSET", self._inflight, f"{_OWNER}1", _FIRST), 1)
        page = ["up", "", "", 10, _MUCH]
        yield Trial(Call(scripts.SET_PAGE, [keys.dead], page), lambda reply: reply[0] == _SECOND)
        lists, page = [queue, keys.suspects("q")], ["next", 1, 0, "", 10, _MUCH]
        yield Trial(Call(scripts.LIST_PAGE, lists, page), [1, 0, 0, _FIRST])
        jid = f'"{_JID(1)}"'
        places = [self._inflight, queue, keys.dead]
        yield Trial(
            Call(scripts.FIND_JOB, places, [jid, 1, 1, _MUCH]),
            [1, *self._leased(1, _FIRST)[:2], _FIRST, 2, b"", _FIRST],
        )
        yield Trial(Call(scripts.FIND_JOB_IN_LIST, [queue], [jid, 0, _MUCH]), [-1, _FIRST])
        kept = [keys.undo_list(_JID(1), 0), keys.undo(_JID(1))]
        fixed = [keys.queues, keys.dead, *kept, keys.suspected, *self._marked]
        deletes = ["list", _KEPT, "queued q", 1, 0, 1, "", _FIRST, _FIRST, 0, "", "", ""]
        yield Trial(Call(scripts.JOBS_MOVE, [queue, *fixed], deletes), [1])
        forgets = ["set", 0, "dead", 0, 0, 1, "", "", _SECOND, 0, "", "", ""]
        yield Trial(Call(scripts.JOBS_MOVE, [keys.dead, *fixed], forgets), [1])
        back = [kept[0], queue, keys.queues, keys.suspects("q"), keys.suspected, keys.marked]
        yield Trial(Call(scripts.JOBS_RESTORE, back, ["list", "q", 2, ""]), [1, 0])
        found = Call(scripts.MARKED_IN_SET, [keys.dead], [0, 10, _MUCH])
        yield Trial(found, [0])

    def given_to_another_shard(self) -> Iterator[Trial]:
        """A page of a queue leaves and arrives. Its new place is on this server, too."""
        keys, queue, name = self._keys, self._keys.queue("m"), "move"
        page = [keys.moves, keys.moving("m")]
        yield Trial(("LPUSH", queue, _FIRST, _SECOND), 2)
        yield Trial(
            Call(
                scripts.MOVE_TAKE,
                [*page, queue, keys.suspected],
                ["m", "queued", name, 0, 10, _MUCH],
            ),
            [name.encode(), b"1", b"queued", [_SECOND, _FIRST]],
        )
        puts = [keys.arrived, keys.queue("n"), keys.queues, keys.suspected, keys.marked]
        put = Call(scripts.MOVE_PUT, puts, ["m", name, 1, "queued", _SECOND, _FIRST])
        yield Trial(put, 1)
        yield Trial(put, 0)
        arrived = ["m", name, 1, "arrived", ""]
        yield Trial(Call(scripts.MOVE_CLOSE, [*page, queue, keys.suspected], arrived), 1)
        of_queue = [queue, keys.suspects("m"), keys.inflight("m"), keys.moving("m")]
        names = [keys.moves, keys.queues, keys.paused, keys.paused_by, keys.controlled]
        rules = [keys.control("m"), keys.bucket("m"), keys.turn("m")]
        yield Trial(Call(scripts.MOVE_END, [*names, *of_queue, *rules], ["m"]), 1)

    def periodic(self) -> Iterator[Trial]:
        """A periodic job is published, ticks, and ends; and a clock leads."""
        keys, tick, name = self._keys, int(self._now), "c"
        claim = ["generation", 1, 1, "", _KEPT]
        yield Trial(Call(scripts.CRON_CLAIM, [keys.cron_claim("s")], claim), None)
        entries = [keys.cron, keys.cron_last, keys.cron_pending]
        yield Trial(Call(scripts.CRON_PUBLISH, entries, [_KEPT, name, "", "{}", ""]), [])
        yield Trial(Call(scripts.CRON_REBASE, [keys.cron_last], [name, "", tick - 1]), 1)
        runs = keys.cron_runs(name)
        places = [keys.cron_last, keys.cron_pending, runs, keys.cron, keys.queues, keys.queue("q")]
        places.append(keys.marked)
        job = [_THIRD, _JID(3), "q", "skip", "", "refused"]
        fires = [name, tick, "line", 10, _KEPT, *job]
        yield Trial(Call(scripts.CRON_TICK, places, fires), [b"enqueued", str(tick).encode()])
        ended = [name, _JID(3), "line", 10, _KEPT]
        yield Trial(Call(scripts.CRON_ENDED, [keys.cron_pending, runs], ended), 1)
        leads = ["leader", _KEPT * 1000, ""]
        held = [b"leader", _KEPT * 1000]
        yield Trial(Call(scripts.LEADER_CLAIM, [keys.leader], leads), held)
        yield Trial(
            Call(scripts.LEADER_RESIGN, [keys.leader, keys.leader_left], ["leader", 1000, _KEPT]), 1
        )

    def counted(self) -> Iterator[Trial]:
        """The record of a process, its counters and run times, its end, and a deploy."""
        keys, day = self._keys, "2026-01-01"
        record = [keys.process(_IDENTITY), keys.process_ref(_IDENTITY)]
        yield Trial(Call(scripts.PROCESS_RECORD, record, [_KEPT, _KEPT, "ref", "busy", 0]), 1)
        flushed, processed = keys.flushed(_IDENTITY), keys.stat("processed")
        of_class = [keys.metrics("m"), keys.metrics("t"), keys.histogram(_CLASS, "m")]
        counters = [flushed, processed, *of_class, keys.totals("jobs")]
        fields = [2, f"{_CLASS}|p", 1, f"{_CLASS}|ms", 5, _KEPT, _KEPT]
        histogram, totals = [1, _KEPT, 1, 3, 1], [1, 10, 1, _CLASS, 1, "n", 1]
        amounts = [1, _KEPT, 1, 0, 1, 1, 0, *fields, *histogram, *totals]
        yield Trial(Call(scripts.COUNTERS_FLUSH, counters, amounts), [])
        stats = [processed, keys.stat_of_day("processed", day)]
        stats += [keys.stat("failed"), keys.stat_of_day("failed", day)]
        yield Trial(Call(scripts.COUNTERS_ADD_MISSING, [flushed, *stats], [3, 0, _KEPT]), 2)
        ends = [flushed, keys.totals("children")]
        yield Trial(Call(scripts.CHILD_ENDED, ends, ["exit", 10, _KEPT]), 1)
        marks = [keys.marks("20260101"), keys.deploy_lock("d")]
        yield Trial(Call(scripts.DEPLOY_MARK, marks, ["m", "label", _KEPT, _KEPT]), b"label")

    def _fetch(self, first: int, *brings: bytes, done: int = 0) -> Trial:
        """A fetch that takes these jobs, the first one under the lease ``first``; ``done``: the
        lease to acknowledge."""
        keys = [self._keys.paused, self._keys.controlled, *self._lists]
        count = len(brings)
        arguments = [count, _OWNER, first, 0, 1, count, 1, 0]
        if done:
            keys.append(self._awaited)
            arguments[-1:] = [1, 1, 1, done]
        brought = [part for payload in brings for part in (1, payload)]
        return Trial(Call(scripts.FETCH, keys, arguments), [0, 0, [], [], *brought])

    def _fetch_by_rules(self, first: int) -> Call:
        keys = [self._keys.paused, self._keys.controlled, *self._lists, *self._keys.of_rules("q")]
        rules = [1, 1, "", "", "", "", "", 0]
        return Call(scripts.FETCH, keys, [2, _OWNER, first, 0, 1, 2, 1, 0, 0, *rules])

    def _fetch_of_a_solo_child(self) -> Call:
        lists = [self._keys.suspects("q"), self._inflight]
        keys = [self._keys.paused, self._keys.controlled, *lists, self._keys.suspected]
        return Call(scripts.FETCH_SUSPECTS, keys, [1, _SOLO, 7, 0, 1, 1, 1, 0])

    def _recover(self, lease: str, where: str) -> Call:
        """Returns a dead process's job, with what the payload in Redis lacks put behind it."""
        keys = self._keys
        fixed = [keys.dead, keys.lost(_IDENTITY), keys.queues, keys.schedule, keys.suspected]
        lists = [*self._lists, self._awaited, keys.suspects("q")]
        bounds = [self._now, self._now - _AHEAD, 100, _KEPT]
        return Call(
            scripts.RECOVER, [*fixed, *lists], [*bounds, 1, lease, where, -1, "}", "", "job"]
        )

    def _leased(self, number: int, payload: bytes) -> list[Any]:
        return [1, f"{_OWNER}{number}".encode(), b"whole", payload, b""]


def _told(reason: str, payload: bytes) -> Callable[[Any], bool]:
    """Whether a fetch took this job alone, and gave this reason."""
    return lambda reply: reply[2][:2] == [1, reason.encode()] and reply[4:] == [1, payload]


def _is_about(moment: float) -> Callable[[Any], bool]:
    """Whether a reply is this time: servers write a score in several ways."""
    return lambda reply: abs(float(reply) - moment) < 1.0
