"""What a child says of its jobs: log lines, and the app's error handlers. Never the arguments."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeAlias

from .. import registry
from ..errors import MalformedPayload
from ..wire.lease import UnitOfWork
from ..wire.payload import Payload
from ..wire.times import now
from .failure.retry import Bury, Decision, Retry

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# Those keys of a job that are told of it: never its arguments.
About: TypeAlias = Payload


class JobLog:
    """One per child. The two lines that every job writes cost nothing when INFO is off."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._chatty = bool(log.is_enabled_for(20))

    def started(self, job: About) -> None:
        """A processor has loaded ``job``."""
        if self._chatty:
            self._log.info("start", **_name(job))

    def done(self, job: About, unit: UnitOfWork) -> None:
        """``job`` performed."""
        if self._chatty:
            self._log.info("done", **_name(job), elapsed=_elapsed(unit))

    def interrupted(self, job: About, unit: UnitOfWork) -> None:
        """The stop cut ``job`` short."""
        self._log.warning("interrupted, goes back", **_name(job), elapsed=_elapsed(unit))

    def failed(
        self, told: About, job: Payload, unit: UnitOfWork, error: BaseException, decision: Decision
    ) -> None:
        """``job`` raised ``error``, and this is what becomes of it."""
        self._log.warning(
            "failed", **_name(told), elapsed=_elapsed(unit), **_fate(decision), exc_info=error
        )
        self._tell(error, {"context": "a job failed", "job": job})

    def malformed(self, unit: UnitOfWork, error: MalformedPayload) -> None:
        """A payload that is no job was found."""
        self._log.error("malformed payload, buried", queue=unit.queue_name, reason=str(error))
        self._tell(error, {"context": "malformed payload", "queue": unit.queue_name})

    def complain(self, error: BaseException, meaning: str) -> None:
        """The app's own hook or handler failed; ``meaning`` says what that changes."""
        self._log.error(meaning, exc_info=error)
        self._tell(error, {"context": meaning})

    def _tell(self, error: BaseException, context: dict[str, Any]) -> None:
        for handler in registry.error_handlers:
            try:
                handler(error, context)
            except BaseException as bad:  # noqa: BLE001 - the app's own code, SystemExit too
                self._log.error("an error handler failed", exc_info=bad)


def about(job: Payload) -> About:
    """What is told of ``job``, taken before middleware or the job itself can change it."""
    told: About = {"class": job.get("wrapped") or job["class"], "jid": job.get("jid")}
    if "forkq" in job:
        told["forkq"] = job["forkq"]
    return told


def _name(job: About) -> dict[str, Any]:
    return {"class": job["class"], "jid": job.get("jid")}


def _elapsed(unit: UnitOfWork) -> float:
    return round(time.monotonic() - unit.taken, 3)


def _fate(decision: Decision) -> dict[str, Any]:
    if isinstance(decision, Retry):
        return {"retry_in": round(decision.at - now(), 1)}
    return {"fate": "dead" if isinstance(decision, Bury) else "dropped"}
