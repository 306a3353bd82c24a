"""The locks of unique jobs: as a table, in words on a job's page, and what can be done with one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from ...api import LockFilter, Server, UniqueLock, unique_locks
from ...store.find_job import Found
from ...units import format_moment, plural
from ..plans import ActionDone, Plan
from ..table import (
    BROWSER,
    COMMAND,
    Button,
    Cell,
    Column,
    Empty,
    Moment,
    PageLink,
    Phrase,
    Sheet,
    tag,
)
from ..texts import name as shown

PATH: Final = "/locks"
ACTION: Final = "free locks"
_KNOWN: Final = ("job", "jid", "since", "until", "sure", "newest", "due", "latest")
# A page that is made again each second looks at fewer keys than a command.
MOST_KEYS_OF_PAGE: Final = 100_000


class LockLine(msgspec.Struct, frozen=True):
    """A lock, and in words where its job is; "": that was not looked for."""

    lock: UniqueLock
    place: str = ""

    @property
    def key(self) -> str:
        """The digest, by which a selection names it."""
        return self.lock.digest


def of_locks(
    locks: Iterable[UniqueLock], places: Mapping[str, Found | None] | None = None
) -> list[LockLine]:
    """The lines of these locks. ``places``: where their jobs are, by their jids."""
    known = places or {}
    return [LockLine(one, _place(one, known[one.jid]) if one.jid in known else "") for one in locks]


def _place(lock: UniqueLock, found: Found | None) -> str:
    if found is None:
        return "nowhere"
    if found.location == "scheduled" and lock.due is not None:
        return f"debounced, {shown(found.queue)}"
    if found.location == "running":
        return f"running in {shown(found.owner)}"
    alone = ", alone" if found.among_suspects else ""
    return f"{found.location}, {shown(found.queue)}{alone}"


def _job(line: LockLine) -> Cell:
    lock = line.lock
    link = PageLink("/job", {"jid": lock.jid})
    return Phrase(lock.job, link=link), Phrase(lock.jid, kind="copy")


def _state(line: LockLine) -> Cell:
    """Whether the job waits for further pushes. Else whether it is surely there: a push that meets
    a doubted lock has it looked for."""
    if line.lock.due is not None:
        return (tag("debounced", "quiet"),)
    return (tag("unconfirmed", "quiet"),) if line.lock.is_doubted else ()


def _where(line: LockLine) -> Cell:
    if not line.place:
        return ()
    then = f", then {line.lock.newest}" if line.lock.newest else ""
    return (Phrase(f"{line.place}{then}", "bad" if line.place == "nowhere" else ""),)


def _free(line: LockLine) -> tuple[Button, ...]:
    fields = {"digest": line.lock.digest, "jid": line.lock.jid}
    return (Button(f"{PATH}/free", "Free", ACTION, fields),)


def as_object(line: LockLine) -> dict[str, Any]:
    """A lock as programs get it."""
    lock = line.lock
    known = {name: getattr(lock, name) for name in _KNOWN}
    return {"shard": lock.server.name, "digest": lock.digest, **known, "where": line.place}


LOCKS: Final[Sheet[LockLine]] = Sheet(
    "Locks",
    (
        Column(
            "digest", "Lock", lambda line: (Phrase(line.lock.digest, kind="id"),), whole=True,
            on=COMMAND,
        ),
        Column("job", "Job", _job, least=12),
        Column(
            "jid", "Id", lambda line: (Phrase(line.lock.jid, kind="id"),), whole=True,
            on=COMMAND, brief="JID",
        ),
        Column("since", "Held", lambda line: (Moment(line.lock.since),)),
        Column("until", "Until", lambda line: (Moment(line.lock.due or line.lock.until),)),
        Column("where", "Where", _where, on=COMMAND),
        Column("state", "", _state, on=BROWSER),
    ),
    lambda line: f"{line.lock.server.name} {line.lock.digest}",
    Empty(
        "No lock is held.",
        "The lock of each unique job stands here as long as that waits or runs: "
        "@forkq.job(unique_for=3600)",
        "there is no lock",
    ),
    facts=as_object,
    words=lambda line: (line.lock.job, line.lock.jid, line.lock.digest),
    buttons=_free,
    label=lambda line: f"{line.lock.job} {line.lock.jid}",
    heading="job",
    command="forkq unique",
)  # fmt: skip


def free(server: Server, digests: Sequence[str], jid: str = "") -> Plan:
    """Frees these locks, each only from the job that has it now. ``jid``: the one that a page has
    shown."""
    found = unique_locks(LockFilter(digests=tuple(digests)), server) if digests else []
    return freed([lock for lock in found if not jid or lock.jid == jid])


def freed(locks: Sequence[UniqueLock]) -> Plan:
    """The plan that frees these locks."""

    def do() -> ActionDone:
        done = [lock.jid for lock in locks if lock.free()]
        if not done:
            return ActionDone("Nothing was done: none of these locks is held any more.", count=0)
        return ActionDone(f"Freed {plural(len(done), 'lock')}.", done, count=len(done))

    one = f"the lock of {shown(locks[0].job)} {shown(locks[0].jid)}" if len(locks) == 1 else ""
    says = f"Free {one or plural(len(locks), 'lock')}?"
    details = ("Its job stays where it is: the next one like it may run beside it.",)
    return Plan(says, do, "Free", PATH, details=details, danger=True)


def lock_facts(lock: UniqueLock) -> dict[str, Any]:
    """What programs get of the lock that a job needs."""
    found = {"digest": lock.digest, "jid": lock.jid or None, "until": lock.until}
    if lock.due is not None:
        found |= {"since": lock.since, "due": lock.due, "latest": lock.latest}
    return found


def without_locks(count: int) -> str:
    """The sentence that so many jobs run though other jobs have their locks; "" for none."""
    if not count:
        return ""
    if count == 1:
        return "1 without its lock, which another job has"
    return f"{count:,} without their locks, which other jobs have"


def lock_text(lock: Mapping[str, Any], jid: str) -> str:
    """Who has the lock that a job needs, in words. ``lock`` is what ``lock_facts`` has
    returned."""
    if lock["jid"] is None:
        return "free"
    if lock["jid"] == jid and "due" in lock:
        since, due, latest = (format_moment(lock[name]) for name in ("since", "due", "latest"))
        return f"the next push takes it; first push {since}, due {due}, at the latest {latest}"
    until = "" if lock["until"] is None else f", until {format_moment(lock['until'])} at the latest"
    return (
        f"this job has it{until}" if lock["jid"] == jid else f"the job {shown(lock['jid'])} has it"
    )
