"""What a child logs about its jobs, and the app's error handlers. Never the arguments."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from .. import registry
from ..errors import MalformedPayload
from ..wire.times import now
from .failure.retry import Bury, Decision, Retry
from .job_run import JobRun
from .observers import JobObserver

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


def make_job_log(log: FilteringBoundLogger) -> JobLog:
    """One for a child. The two lines that every job writes cost nothing when INFO is off."""
    return VerboseJobLog(log) if log.is_enabled_for(logging.INFO) else JobLog(log)


class JobLog(JobObserver):
    """Logs what went wrong."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log

    def interrupted(self, run: JobRun) -> None:
        self._log.warning(
            "interrupted by the stop; returned to the head of its queue",
            **_name(run),
            elapsed=round(run.elapsed, 3),
        )

    def failed(self, run: JobRun, error: BaseException, decision: Decision) -> None:
        """Logs the failure and calls the app's error handlers."""
        for complaint in run.complaints:
            self.complain(*complaint)
        if run.job is None and isinstance(error, MalformedPayload):
            self._malformed(run, error)
            return
        values = {**_name(run), "elapsed": round(run.elapsed, 3), **_consequence(decision)}
        self._log.warning("failed", **values, exc_info=error)
        self._call_error_handlers(error, {"context": "a job failed", "job": run.job or {}})

    def complain(self, error: BaseException, meaning: str) -> None:
        """The app's own hook or handler failed; ``meaning`` says what that changes."""
        self._log.error(meaning, exc_info=error)
        self._call_error_handlers(error, {"context": meaning})

    def _malformed(self, run: JobRun, error: MalformedPayload) -> None:
        queue = run.unit.queue_name
        self._log.error("malformed payload, buried", queue=queue, reason=str(error))
        self._call_error_handlers(error, {"context": "malformed payload", "queue": queue})

    def _call_error_handlers(self, error: BaseException, context: dict[str, Any]) -> None:
        for handler in registry.error_handlers:
            try:
                handler(error, context)
            except BaseException as bad:  # noqa: BLE001 - the app's own code, SystemExit too
                self._log.error("an error handler failed", exc_info=bad)


class VerboseJobLog(JobLog):
    """Logs each job's beginning and end, too."""

    def started(self, run: JobRun) -> None:
        self._log.info("start", **_name(run))

    def done(self, run: JobRun) -> None:
        self._log.info("done", **_name(run), elapsed=round(run.elapsed, 3))


def _name(run: JobRun) -> dict[str, Any]:
    return {"class": run.shown_class, "jid": run.jid}


def _consequence(decision: Decision) -> dict[str, Any]:
    if isinstance(decision, Retry):
        return {"retry_in": round(decision.at - now(), 1)}
    return {"outcome": "dead" if isinstance(decision, Bury) else "dropped"}
