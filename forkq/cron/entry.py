"""What a periodic job is: its schedule, job and rules. Any process; no Redis, no effects."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from ..errors import InvalidJob, InvalidSchedule, MalformedPayload
from ..values import replace
from ..wire.payload import DEFAULT_QUEUE, bounded, dumps
from ..wire.validation import validate
from .schedule import Schedule
from .service import service_of
from .zones import zone_name

__all__ = ["Entry", "Missed", "Overlap", "Schedule", "check_name", "missed_ticks"]

Overlap: TypeAlias = Literal["skip", "allow"]
Missed: TypeAlias = Literal["skip", "once"] | int

MOST_MISSED: Final = 1000
LONGEST_JITTER: Final = 86400
LONGEST_NAME: Final = 128
_UNREADABLE: Final = (
    msgspec.MsgspecError, UnicodeDecodeError, RecursionError, MalformedPayload, InvalidJob
)  # fmt: skip
# A last tick that lies further ahead than this many seconds was noted by a clock that was wrong.
MAX_CLOCK_ERROR: Final = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The definition of one periodic job, as Redis stores it; made by ``make`` or ``decode``.

    ``job`` is the payload that each tick pushes, without what a push adds (jid, times).
    ``overlap``: "skip" leaves a tick out while the job of an earlier one has not ended. ``missed``:
    how many missed ticks to enqueue late, newest first. ``jitter`` is in seconds. ``origin`` says
    where it is defined (cron/service.py).
    """

    name: str
    schedule: Schedule
    job: dict[str, Any]
    overlap: Overlap = "allow"
    missed: int = 1
    jitter: float = 0.0
    enabled: bool = True
    origin: str = ""

    @classmethod
    def make(
        cls,
        *,
        name: str,
        cron: str,
        job: Mapping[str, Any],
        tz: str | tzinfo = "UTC",
        overlap: Overlap = "allow",
        missed: Missed = "once",
        jitter: float = 0,
        enabled: bool = True,
        origin: str = "",
    ) -> Entry:
        """Makes an entry from what a user wrote. Raises InvalidSchedule, and InvalidJob for a
        ``job`` that cannot be pushed."""
        check_name(name)
        template = dict(job)
        validate(template)
        dumps(template)
        return cls(
            name=name,
            schedule=Schedule.parse(cron, zone_name(tz)),
            job=template,
            overlap=_checked_overlap(overlap),
            missed=missed_ticks(missed),
            jitter=_checked_jitter(jitter),
            enabled=_checked_enabled(enabled),
            origin=origin,
        )

    @property
    def service(self) -> str | None:
        """The service that published it; None if it was added at run time."""
        return service_of(self.origin)

    def in_zone(self, tz: str) -> Entry:
        """This entry with its expression in another time zone. Raises InvalidSchedule."""
        return replace(self, schedule=Schedule.parse(self.schedule.expression, zone_name(tz)))

    def due(self, tick: int) -> float:
        """When to push the job of ``tick``, epoch seconds: up to ``jitter`` seconds later, by a
        hash of name and tick, so that every clock computes the same time."""
        digest = hashlib.sha256(f"{self.name}\0{tick}".encode()).digest()
        return tick + self.jitter * (int.from_bytes(digest[:6], "big") / 2**48)

    def restarts(self, old: Entry | None) -> bool:
        """Whether its ticks start at its publication, with ``old`` as the definition before. If
        not, ticks before that may be missed ones."""
        return old is None or old.schedule != self.schedule or (self.enabled and not old.enabled)

    def encode(self) -> bytes:
        """The entry as JSON; equal entries give equal bytes."""
        return msgspec.json.encode(
            _Written(
                name=self.name,
                cron=self.schedule.expression,
                tz=self.schedule.tz,
                job=self.job,
                overlap=self.overlap,
                missed=self.missed,
                jitter=self.jitter,
                enabled=self.enabled,
                origin=self.origin,
            )
        )

    @classmethod
    def decode(cls, raw: bytes) -> Entry:
        """The entry in ``raw``. Raises InvalidSchedule if this forkq cannot read it: another
        program or a later forkq wrote it."""
        try:
            written = msgspec.json.decode(bounded(raw), type=_Written)
            fields = {key: getattr(written, key) for key in written.__struct_fields__}
            entry = cls.make(**fields | {"job": _with_usual_queue(written.job)})
            return replace(entry, job=written.job)
        except _UNREADABLE as error:
            raise InvalidSchedule(f"not a periodic job that forkq can read: {error}") from None


class _Written(msgspec.Struct, kw_only=True):
    """An entry's JSON."""

    name: str
    cron: str
    job: dict[str, Any]
    tz: str = "UTC"
    overlap: Overlap = "allow"
    missed: int = 1
    jitter: float = 0.0
    enabled: bool = True
    origin: str = ""


def _with_usual_queue(job: dict[str, Any]) -> dict[str, Any]:
    """``job`` with a queue that forkq may push to. What is read may name any: only what is written
    is held to the rule."""
    queue = job.get("queue")
    return {**job, "queue": DEFAULT_QUEUE} if type(queue) is str and queue else job


def check_name(name: object) -> None:
    """Raises InvalidSchedule for a name that a log line or a command line cannot hold."""
    fits = isinstance(name, str) and 0 < len(name) <= LONGEST_NAME
    if not fits or not str(name).isprintable() or name != str(name).strip():
        raise InvalidSchedule(
            f"expected a name of 1 to {LONGEST_NAME} printable characters, no spaces at the ends, "
            f"found {str(name)[: LONGEST_NAME + 1]!r}"
        )


def missed_ticks(missed: Missed) -> int:
    """``"skip"``, ``"once"`` or a number, as a number of ticks. Raises InvalidSchedule."""
    found: object = (
        {"skip": 0, "once": 1}.get(missed, missed) if isinstance(missed, str) else missed
    )
    if type(found) is not int or not 0 <= found <= MOST_MISSED:
        raise InvalidSchedule(
            f'missed: expected "skip", "once" or a whole number from 0 to {MOST_MISSED}, '
            f"found {missed!r}"
        )
    return found


def _checked_overlap(overlap: Overlap) -> Overlap:
    if overlap not in get_args(Overlap):
        raise InvalidSchedule(f'overlap: expected "skip" or "allow", found {overlap!r}')
    return overlap


def _checked_enabled(enabled: object) -> bool:
    if type(enabled) is not bool:
        raise InvalidSchedule(f"enabled: expected true or false, found {enabled!r}")
    return enabled


def _checked_jitter(jitter: float) -> float:
    if type(jitter) not in (int, float) or not 0 <= jitter <= LONGEST_JITTER:
        raise InvalidSchedule(
            f"jitter: expected a number of seconds from 0 to {LONGEST_JITTER}, found {jitter!r}"
        )
    return float(jitter)
