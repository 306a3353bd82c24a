"""Batches: as a table, and one of them in words."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from ...api import BatchReport
from ...units import format_count, format_duration, plural
from ..table import COMMAND, Cell, Column, Empty, Moment, Phrase, Sheet, Tone

_TONES: Final[dict[str, Tone]] = {"broken": "bad", "succeeded": "good"}


def _state(batch: BatchReport) -> Cell:
    if batch.may_be_abandoned:
        return (Phrase("open, abandoned?", "bad"),)
    if batch.state == "finished" and batch.dead:
        return (Phrase("finished", "bad"),)
    return (Phrase(batch.state, _TONES.get(batch.state, "")),)


def _count(name: str, title: str) -> Column[BatchReport]:
    def cell(batch: BatchReport) -> Cell:
        return (Phrase(format_count(getattr(batch, name))),)

    return Column(name, title, cell, align="right")


def as_object(batch: BatchReport) -> dict[str, Any]:
    """A batch as programs get it."""
    return {**dataclasses.asdict(batch), "waiting": batch.waiting}


BATCHES: Final[Sheet[BatchReport]] = Sheet(
    "Batches",
    (
        Column("bid", "Batch", lambda b: (Phrase(b.bid, kind="id"),), whole=True, on=COMMAND),
        Column("name", "Name", lambda b: (Phrase(b.name),) if b.name else (), least=12),
        Column("state", "State", _state),
        _count("total", "Members"),
        _count("waiting", "Waiting"),
        _count("done", "Done"),
        _count("dead", "Dead"),
        _count("otherwise", "Otherwise"),
        Column("made_at", "Made", lambda b: (Moment(b.made_at),)),
    ),
    lambda batch: f"{batch.shard} {batch.bid}",
    Empty(
        "There is no batch.",
        'What is pushed within `with forkq.Batch("import"):` is a batch.',
        "there is no batch",
    ),
    facts=as_object,
    words=lambda batch: (batch.bid, batch.name),
    command="forkq batches",
)


def told(batch: BatchReport) -> list[str]:
    """What a person should know of a batch beside its numbers, and what to do about it."""
    said = [f"{event}: its time has come" for event in batch.fired]
    if batch.state == "broken":
        said.append(
            "its block has raised an error, and nothing ends it by itself: "
            f"`forkq batches seal {batch.bid}` or `forkq batches cancel {batch.bid}`"
        )
    if batch.may_be_abandoned:
        said.append(
            f"it has got no member for {format_duration(batch.silent_for)}, and its block is open: "
            f"if its process is dead, `forkq batches seal {batch.bid}`"
        )
    if batch.dead:
        again = f"`forkq batches retry {batch.bid}` tries again"
        if batch.state == "cancelled":
            again = "the batch is cancelled, so `forkq retry JID` tries each again"
        said.append(f"{plural(batch.dead, 'member')} died: {again}")
    lists = (("failing", batch.failing), ("dead", batch.dead_jids), ("within it", batch.children))
    return [*said, *(f"{title}: {' '.join(names)}" for title, names in lists if names)]
