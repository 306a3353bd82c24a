"""Puts Sentry around pushes and runs, and reports errors."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import sentry_sdk

from forkq import registry
from forkq.contrib.flushing import flush_within
from forkq.contrib.runs import observe
from forkq.errors import ConfigError

from .push_spans import SentryPushSpans
from .run_scopes import Report, RunScopes
from .scrub import without_values


def instrument(
    *,
    report: Report = "always",
    arguments: bool = False,
    monitors: bool = True,
    flush_timeout: float = 2.0,
) -> None:
    """Reports failed jobs, traces and periodic jobs to Sentry. Call it where the app is imported,
    in the processes that push, too. It starts nothing: call ``sentry_sdk.init`` in
    ``@forkq.on("startup")``.

    ``report``: "always", each failed attempt; or "final", only a job that is given up.
    ``arguments``: a report has those of the job, with the secret ones masked. ``monitors``: each
    run of a periodic job is a check-in of its cron monitor. ``flush_timeout``: how long a child
    that ends waits for Sentry, in seconds. A second call replaces the first. Raises ConfigError.
    """
    if report not in ("always", "final"):
        raise ConfigError(f"sentry.instrument: report is {report!r}; use 'always' or 'final'")
    _pushes.install()
    observe(RunScopes(report, arguments=arguments, monitors=monitors))
    if _report_other not in registry.error_handlers:
        registry.on_error(_report_other)
    _flush.timeout = flush_timeout
    if _flush not in registry.handlers("exit"):
        registry.on("exit")(_flush)


def _report_other(error: BaseException, context: registry.ErrorContext) -> None:
    """Reports an error of a hook or a handler, or a malformed payload; RunScopes reports a failed
    job."""
    if "outcome" in context:
        return
    with sentry_sdk.new_scope() as scope:
        scope.add_event_processor(partial(without_values, secret=False))
        known: dict[str, Any] = {key: context[key] for key in ("queue",) if key in context}
        for key, value in known.items():
            scope.set_tag(key, value)
        scope.set_context("forkq", {"what": context["context"], **known})
        sentry_sdk.capture_exception(error)


class _SentryFlush:
    """The handler of ``exit``."""

    timeout = 0.0

    def __call__(self) -> None:
        flush_within(self.timeout, [partial(sentry_sdk.flush, timeout=self.timeout)])


_flush: Final = _SentryFlush()
_pushes: Final = SentryPushSpans()
