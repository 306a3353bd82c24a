"""One job that a test has recorded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from ..errors import shown
from ..features.marked import ticket_in
from ..features.unique.parts import lock_in
from ..values import replace
from ..wire.marks import KEY, needs_in
from ..wire.payload import DEFAULT_QUEUE, Payload, dumps, loads


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """``payload`` is what a child would load. ``at`` is the epoch second at which the job is due,
    None if it waits in its queue. ``retrying``: it has failed, and runs again then. ``raw`` is the
    JSON that Redis would have. ``first``: when the first of the pushes came, if it waits for
    further ones (``debounce``)."""

    payload: Payload
    at: float | None
    retrying: bool = False
    raw: bytes = field(default=b"", repr=False)
    first: float = field(default=0.0, repr=False)

    @classmethod
    def of(cls, raw: bytes, at: float | None = None, *, retrying: bool = False) -> RecordedJob:
        """The job in ``raw``."""
        return cls(loads(raw), at, retrying, raw)

    @property
    def name(self) -> str:
        """The registered name of its class or function."""
        return cast("str", self.payload["class"])

    @property
    def args(self) -> list[Any]:
        """The arguments of the job, after JSON."""
        return cast("list[Any]", self.payload["args"])

    @property
    def jid(self) -> str:
        """The id of the job."""
        return cast("str", self.payload["jid"])

    @property
    def queue(self) -> str:
        """The queue that the job waits in, or goes to when it is due."""
        return cast("str", self.payload.get("queue") or DEFAULT_QUEUE)

    @property
    def ticket(self) -> str:
        """The digest of its lock, if at most one of its kind waits; else ""."""
        lock = ticket_in(self.payload)
        return "" if lock is None else lock.digest

    @property
    def debounced(self) -> str:
        """The digest of its lock, if the next push takes its place (``debounce``); else ""."""
        lock = lock_in(needs_in(self.payload.get(KEY))) if self.first else None
        return "" if lock is None else lock.digest

    @property
    def is_latest(self) -> bool:
        """Whether at most one of its kind runs, too."""
        lock = ticket_in(self.payload)
        return lock is not None and lock.kind == "latest"

    def __str__(self) -> str:
        arguments = ", ".join(map(shown, self.args))
        return f"{self.name}({arguments})  queue={self.queue}{self._when()}  jid={self.jid}"

    def _when(self) -> str:
        if self.at is None:
            return ""
        kind = "retry" if self.retrying else "due"
        return f"  {kind} {self.delay:.0f} s after its push"

    @property
    def delay(self) -> float:
        """Seconds from the push until the job is due; 0 if it waits in its queue."""
        return 0.0 if self.at is None else self.at - float(self.payload["created_at"])

    def stamped(self, moment: float) -> RecordedJob:
        """The job as the clock moves it to its queue at ``moment``."""
        raw = dumps({**self.payload, "enqueued_at": moment})
        return replace(self, payload=loads(raw), raw=raw, at=None, first=0.0)
