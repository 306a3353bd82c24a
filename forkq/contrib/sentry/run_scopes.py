"""A scope and a transaction for each run of a job, and a report if it fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime, timezone
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import msgspec
import sentry_sdk
from sentry_sdk.scope import Scope, use_isolation_scope
from sentry_sdk.tracing import Transaction
from sentry_sdk.utils import event_from_exception

from forkq.api.masks import defined_here
from forkq.api.readable_job import masked_args
from forkq.contrib.runs import ObservedRun, Outcome, RunObserver
from forkq.errors import TimeLimit

from .monitors import CheckIn, check_in_of
from .push_spans import HEADERS
from .scrub import without_values

Report: TypeAlias = Literal["always", "final"]

_STATUS: Final[Mapping[Outcome, str]] = {
    "done": "ok",
    "discarded": "ok",
    "snoozed": "ok",
    "cancelled": "cancelled",
    "interrupted": "aborted",
}


class _Kept(msgspec.Struct, frozen=True):
    """What belongs to one run."""

    scope: Scope
    transaction: Transaction
    check_in: CheckIn | None


class RunScopes(RunObserver):
    """An observer with a scope for each run. It is the scope of the job, and of the hooks and
    handlers after a failure: what they report has the tags and the breadcrumbs of the job."""

    def __init__(self, report: Report, *, arguments: bool, monitors: bool) -> None:
        self._report = report
        self._arguments = arguments
        self._monitors = monitors

    def began(self, run: ObservedRun) -> None:
        if not sentry_sdk.get_client().is_active():
            return
        scope = sentry_sdk.get_isolation_scope().fork()
        _describe(scope, run, arguments=self._arguments)
        with use_isolation_scope(scope):
            check_in = check_in_of(run) if self._monitors else None
            run.kept[RunScopes] = _Kept(scope, _start_transaction(run), check_in)
            if check_in is not None:
                check_in.begin()

    def inside(self, run: ObservedRun) -> AbstractContextManager[object]:
        kept: _Kept | None = run.kept.get(RunScopes)
        return nullcontext() if kept is None else _within(kept)

    def ended(self, run: ObservedRun) -> None:
        kept: _Kept | None = run.kept.get(RunScopes)
        if kept is None:
            return
        kept.scope.set_tag("outcome", run.outcome)
        with _within(kept):
            if run.failed and (self._report == "always" or run.outcome != "retried"):
                _capture(run)
            kept.transaction.set_status(_status(run))
            kept.transaction.finish(end_timestamp=_end_of(run))
            if kept.check_in is not None:
                kept.check_in.end(run)


def _describe(scope: Scope, run: ObservedRun, *, arguments: bool) -> None:
    """Adds tags to search by, and the job."""
    scope.clear_breadcrumbs()
    scope.set_transaction_name(run.name, source="task")
    for tag, value in _tags(run).items():
        scope.set_tag(tag, value)
    job: dict[str, Any] = {**_tags(run), "attempt": run.attempt}
    if arguments:
        job["args"] = masked_args(run.job, defined_here(run.name))
    scope.set_context("forkq", job)
    scope.add_event_processor(partial(without_values, secret=bool(run.job.get("secret"))))


def _tags(run: ObservedRun) -> dict[str, str]:
    return {"class": run.name, "queue": run.queue, "jid": run.jid}


def _start_transaction(run: ObservedRun) -> Transaction:
    carried = run.job.get(HEADERS)
    headers = (
        {key: value for key, value in carried.items() if type(value) is str}
        if type(carried) is dict
        else {}
    )
    transaction = sentry_sdk.continue_trace(headers, "queue.process", run.name, "task")
    sentry_sdk.start_transaction(transaction)
    transaction.set_data("messaging.message.id", run.jid)
    transaction.set_data("messaging.destination.name", run.queue)
    transaction.set_data("messaging.message.retry.count", run.attempt - 1)
    if run.waited is not None:
        transaction.set_data("messaging.message.receive.latency", round(run.waited * 1000, 3))
    return transaction


@contextmanager
def _within(kept: _Kept) -> Iterator[None]:
    with use_isolation_scope(kept.scope):
        sentry_sdk.get_current_scope().span = kept.transaction
        yield


def _capture(run: ObservedRun) -> None:
    assert run.error is not None
    event, hint = event_from_exception(
        run.error,
        client_options=sentry_sdk.get_client().options,
        mechanism={"type": "forkq", "handled": run.outcome == "retried"},
    )
    sentry_sdk.capture_event(event, hint=hint)


def _status(run: ObservedRun) -> str:
    if isinstance(run.error, TimeLimit):
        return "deadline_exceeded"
    return _STATUS.get(run.outcome or "done", "internal_error")


def _end_of(run: ObservedRun) -> datetime:
    return datetime.fromtimestamp(run.began / 1e9 + run.elapsed, timezone.utc)
