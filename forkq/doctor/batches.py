"""The check of batches: which wait for a person, and whether notes for other shards arrive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ..features.batch.parts import number_in
from ..store.steps import checked
from ..units import format_duration, plural
from ..wire.times import now
from .finding import Finding
from .server import ExaminedServer

# The latest ones that are looked at.
_MOST: Final = 1000
# Seconds. A block that has pushed nothing for so long may have lost its process.
_SILENT: Final = 3600.0
# A clock carries a note within milliseconds.
_LATE: Final = 60.0


def batches(server: ExaminedServer) -> Finding:
    """Which batches no process ends by itself, and what was noted for other shards and is still
    here."""
    keys, pipeline = server.keys, server.connection.pipeline
    asked = (
        ("ZRANGE", keys.batches, 0, _MOST - 1, "REV"),
        ("XRANGE", keys.notes, "-", "+", "COUNT", 1),
    )
    names, notes = checked(pipeline(asked))
    found = (
        pipeline([("HMGET", name, "state", "pushed_at", "flow") for name in names]) if names else []
    )
    states = [each for each in found if type(each) is list]
    waits = [*_of_states(states), *_of_notes([number for number, _ in notes])]
    if not waits:
        looked = plural(len(states), "batch", "batches")
        return Finding("ok", "batches", f"{looked}: none waits for a person")
    remedy = (
        "`forkq batches` shows them, and `forkq batches seal` or `cancel` ends one, `forkq flows "
        "cancel` a flow; a note waits for a leader here, or for its shard"
    )
    return Finding("warn", "batches", "; ".join(waits), "their callbacks do not come", remedy)


def _of_states(states: Sequence[Sequence[bytes | None]]) -> Iterator[str]:
    open_ones = [
        is_flow
        for state, at, is_flow in states
        if state == b"open" and now() - number_in(at) > _SILENT
    ]
    broken = sum(state == b"broken" for state, _, _ in states)
    unpushed = sum(map(bool, open_ones))
    silent = len(open_ones) - unpushed
    if broken:
        yield f"the block of {plural(broken, 'batch', 'batches')} has raised an error"
    if silent:
        batches_are = plural(silent, "batch is", "batches are")
        yield f"{batches_are} open, and got no member for an hour"
    if unpushed:
        yield f"the push of {plural(unpushed, 'flow')} has not come to its end, so no step starts"


def _of_notes(numbers: Sequence[bytes]) -> Iterator[str]:
    """The first of the notes, whose numbers begin with the time in milliseconds."""
    for number in numbers[:1]:
        age = now() - int(number.partition(b"-")[0]) / 1000
        if age > _LATE:
            yield f"a note for another shard waits for {format_duration(age)}"
