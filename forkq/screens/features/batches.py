"""Batches: as a table, one of them in words, and what can be done with one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlencode

from ...api import Batch, BatchReport, JobEntry, Server
from ...features.batch.parts import place_in
from ...units import format_count, format_duration, format_moment, plural
from ...wire.marks import KEY, PAUSED, needs_in
from ..plans import ActionDone, Plan
from ..table import (
    BROWSER,
    COMMAND,
    LIVE,
    Cell,
    Column,
    Empty,
    Moment,
    PageLink,
    Phrase,
    Share,
    Sheet,
    Tone,
)
from ..texts import name as shown

PATH: Final = "/batches"
PATH_OF_ONE: Final = "/batch"
CANCEL: Final = "cancel batch"
SEAL: Final = "seal batch"
PAUSE: Final = "pause batch"
RESUME: Final = "resume batch"
_EVENTS: Final = {"d": "on_death", "f": "on_finish", "s": "on_success"}
_TONES: Final[dict[str, Tone]] = {"broken": "bad", "succeeded": "good"}


def state_cell(batch: BatchReport) -> Cell:
    """The state of a batch, or of a flow."""
    if batch.may_be_abandoned:
        return (Phrase("open, abandoned?", "bad"),)
    if batch.state == "finished" and batch.dead:
        return (Phrase("finished", "bad"),)
    if batch.paused_at:
        return (Phrase(f"{batch.state}, paused", "warn"),)
    return (Phrase(batch.state, _TONES.get(batch.state, "")),)


def count_column(name: str, title: str) -> Column[Any]:
    """The column of one number of batches."""

    def cell(batch: BatchReport) -> Cell:
        count = getattr(batch, name)
        return (Phrase(format_count(count), "bad" if name == "dead" and count else ""),)

    return Column(name, title, cell, align="right")


def _batch(batch: BatchReport) -> Cell:
    link = PageLink(PATH_OF_ONE, {"bid": batch.bid})
    return Phrase(batch.name or batch.bid, link=link), Phrase(batch.bid, kind="copy")


def progress_cell(noun: str) -> Callable[[BatchReport], Cell]:
    """The cell that says how many members, or steps, have ended."""

    def cell(batch: BatchReport) -> Cell:
        if not batch.total:
            return ()
        ended = batch.total - batch.waiting
        label = f"{ended:,} of {plural(batch.total, noun)} ended"
        return (Share(ended, batch.total, label, "bad" if batch.dead else ""),)

    return cell


def as_object(batch: BatchReport) -> dict[str, Any]:
    """A batch as programs get it."""
    return {**dataclasses.asdict(batch), "waiting": batch.waiting}


BATCHES: Final[Sheet[BatchReport]] = Sheet(
    "Batches",
    (
        Column("bid", "Batch", lambda b: (Phrase(b.bid, kind="id"),), whole=True, on=COMMAND),
        Column("name", "Name", lambda b: (Phrase(b.name),) if b.name else (), on=COMMAND),
        Column("batch", "Batch", _batch, least=12, on=LIVE),
        Column("state", "State", state_cell),
        count_column("total", "Members"),
        count_column("waiting", "Waiting"),
        count_column("done", "Done"),
        count_column("dead", "Dead"),
        count_column("otherwise", "Otherwise"),
        Column("progress", "Ended", progress_cell("member"), on=BROWSER),
        Column("made_at", "Made", lambda b: (Moment(b.made_at),)),
    ),
    lambda batch: f"{batch.shard} {batch.bid}",
    Empty(
        "There is no batch.",
        'What is pushed within `with forkq.Batch("import"):` is a batch.',
        "there is no batch",
    ),
    facts=as_object,
    words=lambda batch: (batch.bid, batch.name, batch.state),
    label=lambda batch: batch.name or batch.bid,
    heading="batch",
    command="forkq batches",
)


def told(batch: BatchReport) -> list[str]:
    """What a person should know of a batch beside its numbers, and what to do about it."""
    said = [f"the time of on_{event} came {format_moment(at)}" for event, at in batch.fired.items()]
    said += pause_text(batch, "members")
    if batch.state == "broken":
        said.append(
            "its block has raised an error, and nothing ends it by itself: "
            f"`forkq batches seal {batch.bid}` or `forkq batches cancel {batch.bid}`"
        )
    if batch.state == "open" and not batch.may_be_abandoned:
        said.append(
            "its block has not ended: if the process of that is dead, "
            f"`forkq batches seal {batch.bid}`"
        )
    if batch.may_be_abandoned:
        said.append(
            f"it has got no member for {format_duration(batch.silent_for)}, and its block is open: "
            f"if its process is dead, `forkq batches seal {batch.bid}`"
        )
    if batch.dead:
        again = f"`forkq batches retry {batch.bid}` tries those again that are still kept"
        if batch.state == "cancelled":
            again = "the batch is cancelled, so `forkq retry JID` tries each again"
        said.append(f"{plural(batch.dead, 'member')} died: {again}")
    lists = (("failing", batch.failing), ("dead", batch.dead_jids), ("within it", batch.children))
    return [*said, *(f"{title}: {' '.join(names)}" for title, names in lists if names)]


def pause_text(batch: BatchReport, noun: str) -> list[str]:
    """What a person should know of the pause of a batch or a flow; nothing if it has none."""
    if not batch.paused_at:
        return []
    since, remedy = format_moment(batch.paused_at), f"`forkq batches resume {batch.bid}`"
    return [f"it was paused {since}, and its {noun} wait: {remedy}"]


class BatchPart(NamedTuple):
    """A job or a batch that a person may look into: ``what`` it is of the batch, and its id."""

    what: Literal["dead", "failing", "within it"]
    id: str


def parts_of(batch: BatchReport) -> list[BatchPart]:
    """The dead and the failing members of a batch, and the batches within it."""
    dead = [BatchPart("dead", jid) for jid in batch.dead_jids]
    failing = [BatchPart("failing", jid) for jid in batch.failing]
    return [*dead, *failing, *(BatchPart("within it", bid) for bid in batch.children)]


def _what(part: BatchPart) -> Cell:
    return (Phrase(part.what, "bad" if part.what == "dead" else ""),)


BATCH_PARTS: Final[Sheet[BatchPart]] = Sheet(
    "Parts of a batch",
    (
        Column(
            "what", "What", lambda one: (Phrase(one.what, "bad" if one.what == "dead" else ""),)
        ),
        Column("id", "Id", lambda one: (Phrase(one.id, kind="id"),), whole=True),
    ),
    lambda one: f"{one.what} {one.id}",
    Empty("No member is dead or failing, and no batch is within it."),
    words=lambda one: (one.what, one.id),
)


def seal(server: Server, bid: str) -> Plan:
    """The plan that ends the block of a batch."""

    def do() -> ActionDone:
        Batch(bid, server).seal()
        return ActionDone(f"{shown(bid)} takes no more members.")

    says = f"Seal the batch {shown(bid)}?"
    details = ("What was pushed is all that there is. Its callbacks come when that has ended.",)
    return Plan(says, do, "Seal", path_of(bid), details=details, danger=True)


def pause(server: Server, bid: str) -> Plan:
    """The plan that pauses a batch."""
    one = Batch(bid, server)

    def do() -> ActionDone:
        one.pause()
        return ActionDone(f"{shown(bid)} is paused: its members wait, and what runs goes on.")

    return Plan(f"Pause the batch {shown(bid)}?", do, "Pause", path_of(bid), ask=False)


def resume(server: Server, bid: str) -> Plan:
    """The plan that ends the pause of a batch."""
    one = Batch(bid, server)

    def do() -> ActionDone:
        count = one.resume().done
        return ActionDone(f"{shown(bid)} goes on.", count=count)

    return Plan(f"Resume the batch {shown(bid)}?", do, "Resume", path_of(bid), ask=False)


def pause_or_resume(server: Server, bid: str) -> Plan:
    """The plan that pauses a batch, or ends its pause."""
    is_paused = Batch(bid, server).report().paused_at
    return (resume if is_paused else pause)(server, bid)


def cancel(server: Server, bid: str) -> Plan:
    """The plan that cancels a batch."""
    report = Batch(bid, server).report()

    def do() -> ActionDone:
        Batch(bid, server).cancel()
        return ActionDone(f"{shown(bid)} is cancelled: its members end.", count=report.waiting)

    says = (
        f"Cancel the batch {shown(bid)}, and {plural(report.waiting, 'member')} that did not end?"
    )
    details = ("Batches within it are cancelled, too. What runs gets forkq.Cancelled.",)
    return Plan(says, do, "Cancel", path_of(bid), details=details, danger=True)


def retry(server: Server, bid: str) -> Plan:
    """The plan that sends the dead members of a batch to their queues."""
    return retry_dead(Batch(bid, server), "member", "batch", path_of(bid))


def retry_dead(entry: Batch, member: str, whole: str, back: str, *details: str) -> Plan:
    """The plan that sends the dead jobs of a batch, or of a flow, to their queues. ``member`` and
    ``whole``: what people call one of them, and all; ``back``: the page to which it leads."""
    report = entry.report()

    def do() -> ActionDone:
        done = entry.retry_dead().done
        return ActionDone(f"{plural(done, 'job')} retried.", count=done)

    dead = plural(report.dead, f"dead {member}")
    says = f"Retry {dead} of the {whole} {shown(entry.bid)} now?"
    return Plan(says, do, "Retry", back, details=details)


def path_of(bid: str) -> str:
    """The page of a batch in the web UI."""
    return f"{PATH_OF_ONE}?{urlencode({'bid': bid})}"


def batch_of(entry: JobEntry) -> dict[str, Any] | None:
    """The batch or flow of a job, as programs get it; None if it is in none."""
    place = place_in(needs_in(entry.job.get(KEY)))
    if place is None:
        return None
    known: dict[str, Any] = {"bid": place.bid}
    if place.member is not None:
        known["index"] = place.member
    if place.step:
        known["step"] = place.step
    if place.at:
        known["shard"] = place.at
    if entry.location == "scheduled" and (paused := entry.job[KEY].get(PAUSED)):
        known["paused"] = str(paused)
    return known | ({"callback": _EVENTS[place.letter]} if place.letter else {})


def batch_text(found: dict[str, Any]) -> str:
    """The batch or flow of a job in words. ``found`` is what ``batch_of`` has returned."""
    of = f"of {shown(found['bid'])}{' on ' + shown(found['shard']) if 'shard' in found else ''}"
    what = found.get("callback") or f"member {found.get('index')}"
    what = f"step {shown(found['step'])}" if "step" in found else what
    paused = f"; put off, since {shown(found['paused'])} is paused" if "paused" in found else ""
    return f"{what} {of}{paused}"
