"""A task for each script of what jobs remember from one run to the next: cursors and steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ..store import scripts
from ..store.connection import Call
from ..wire.keys import Keys
from ..wire.payload import encode
from .trial import Trial

_LEASE: Final = "conformance:1:0123456789ab/1"
_BEFORE: Final = b'{"class":"Conformance","args":[1],"queue":"i","jid":"1"}'
_AFTER: Final = b'{"class":"Conformance","args":[2],"queue":"i","jid":"1"}'
# Seconds for which a script is asked to keep something.
_KEPT: Final = 60


def remembered(keys: Keys) -> Iterator[Trial]:
    """An iterable job saves its cursor, stops between two items, and goes on; another job remembers
    a step; a third one waits for a signal."""
    yield from _iterated(keys)
    yield from _stepped(keys)
    yield from _signalled(keys)


def _iterated(keys: Keys) -> Iterator[Trial]:
    leased, cursor = keys.inflight("i"), keys.iteration("1")
    reached = ["ex", 1, "c", "7", "rt", "1.5"]
    yield Trial(("HSET", leased, _LEASE, _BEFORE), 1)
    saves = [_LEASE, "i", _AFTER, len(_BEFORE), _KEPT, *reached]
    yield Trial(Call(scripts.CURSOR_SAVE, [leased, cursor, keys.marked], saves), [b"", 1])
    places = [keys.queues, keys.queue("i"), leased, keys.awaited("i"), cursor, keys.marked]
    back = [_LEASE, _AFTER, "head", _KEPT, "", *reached]
    yield Trial(Call(scripts.CURSOR_RETURN, places, back), 1)
    yield Trial(("RPOP", keys.queue("i")), _AFTER)
    yield Trial(("HGET", cursor, "c"), b"7")
    yield Trial(Call(scripts.CURSOR_RETURN, places, back), 0)


def _stepped(keys: Keys) -> Iterator[Trial]:
    leased, steps = keys.inflight("i"), keys.steps("1")
    yield Trial(("HSET", leased, _LEASE, _BEFORE), 1)
    saves = [_LEASE, "i", _AFTER, len(_BEFORE), _KEPT]
    for name, bound, reply in (("a", 9999, 1), ("a", 0, 1), ("b", 0, 2)):
        save = [*saves, name, "value", "{}", 10, bound]
        yield Trial(Call(scripts.STEP_SAVE, [leased, steps, keys.marked], save), reply)
    yield Trial(("HMGET", steps, "a", "b"), [b"value", b"{}"])
    yield Trial(("HGET", leased, _LEASE), _AFTER)
    yield Trial(("DEL", steps, leased), 2)


def _signalled(keys: Keys) -> Iterator[Trial]:
    leased, steps, event = keys.inflight("i"), keys.steps("1"), keys.event("go:7")
    waits = (leased, steps, keys.marked, event)
    yield Trial(("HSET", leased, _LEASE, _BEFORE), 1)
    look = [_LEASE, "i", _AFTER, len(_BEFORE), _KEPT, "go", "1", "", "", 900]
    yield Trial(Call(scripts.STEP_WAIT, waits, look), b"")
    ends = (leased, keys.schedule, keys.awaited("i"), keys.bucket("i"), keys.totals("ends"))
    wait = ["wait", 6, "go", '{"until":4e9}', _KEPT, "1", "1.5", "4000000000", _KEPT]
    sleep = [_LEASE, 4e9, _AFTER, 0, "", "Conformance", encode([5, wait])]
    yield Trial(Call(scripts.RETRY, (*ends, event, steps, keys.schedule), sleep), 1)
    yield from _sent(keys, steps, event)


def _sent(keys: Keys, steps: str, event: str) -> Iterator[Trial]:
    sent = (event, keys.signalled)
    yield Trial(Call(scripts.SIGNAL_SEND, sent, ["go:7", "[1]", 60, 0]), 1)
    yield Trial(Call(scripts.SIGNAL_SEND, sent, ["go:7", "[2]", 60, 0]), 0)
    yield Trial(("SMEMBERS", keys.signalled), lambda found: list(found) == [b"go:7"])
    woken = Call(scripts.SIGNAL_WAKE, (*sent, keys.schedule, steps), ["go:7", "", 0, "1"])
    yield Trial(woken, 1)
    yield Trial(("HGET", steps, "go"), lambda kept: b'"data":[1]' in kept)
    yield Trial(("ZREM", keys.schedule, _AFTER), 1)
    yield Trial(("DEL", steps, event, keys.signalled), 3)
