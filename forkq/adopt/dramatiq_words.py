"""Dramatiq's words. Its times are milliseconds, forkq's are seconds."""

from __future__ import annotations

from typing import Final

from .words import Words

_RESULTS: Final = (
    "write `result_ttl=SECONDS` at the job, and `J.result(jid, timeout=SECONDS)` (docs/results.md)"
)
_FLOWS: Final = "write `forkq.Flow(name, a.s(...) | b.s(...))` (docs/flows.md)"
_BACKOFF: Final = "write `backoff=`: seconds, not milliseconds, or a list of them"
_OPTIONS: Final = {
    "queue_name": "write `queue=`",
    "max_retries": "write `retry=N`; 0: `retry=False`. Without it forkq retries 25 times",
    "min_backoff": _BACKOFF,
    "max_backoff": _BACKOFF,
    "retry_when": "write a `retry_in` hook that returns `forkq.KILL` where it was false",
    "throws": "write `discard_on=(...)`, or a hook that returns `forkq.KILL` to keep the job",
    "on_retry_exhausted": "write a `retries_exhausted` hook that pushes the job",
    "time_limit": "write `timeout=SECONDS` (it was milliseconds); the default is no limit",
    "max_age": "write `expires_in=SECONDS` (Dramatiq: ms; docs/expiry.md)",
    "notify_shutdown": "leave it out: `forkq.Shutdown` is raised at the end of the time-out",
    "store_results": _RESULTS,
    "result_ttl": _RESULTS,
    "on_success": "push the next job, as the last step of this one",
    "on_failure": "write `@forkq.on_error`, or a `retries_exhausted` hook",
    "pipe_ignore": _FLOWS,
    "pipe_target": _FLOWS,
}

DRAMATIQ: Final = Words(
    library="dramatiq",
    packages=frozenset({"dramatiq", "django_dramatiq", "periodiq", "dramatiq_crontab"}),
    decorators={"actor": "write `@forkq.job`; say `name=` if other programs push by the name"},
    options={
        "actor_name": "write `name=`",
        "priority": "no such thing: use several queues, in order or with weights",
        "broker": "leave it out: write `url` under `[redis]`",
        "actor_class": "write `class J(forkq.Job)` with a `perform` method",
        "periodic": 'write `@forkq.every("CRON")` above `@forkq.job`',
        **_OPTIONS,
    },
    calls={
        "send_with_options": "write `J.perform_in(SECONDS, ...)`, or `J.set(...)`",
        "message_with_options": _FLOWS,
    },
    job_calls={
        "send": "write `J.perform_async(...)`; it returns a jid, a string",
        "message": _FLOWS,
    },
    keywords={
        "delay": "write `J.perform_in(SECONDS, ...)` (it was milliseconds)",
        "args": "pass the arguments themselves",
        "kwargs": "pass the arguments themselves",
        **_OPTIONS,
    },
    names={
        "RedisBroker": "write `url` under `[redis]` in forkq.toml",
        "RabbitmqBroker": "forkq works with Redis and Valkey only",
        "StubBroker": "write `forkq.testing.fake()`, or ask for the fixture `forkq_jobs`",
        "Worker": "run `forkq start`; in tests `forkq.testing.drain()`",
        "set_broker": "leave it out",
        "get_broker": "leave it out",
        "GenericActor": "write `class J(forkq.Job)` with a `perform` method",
        "group": "write `J.perform_bulk([(...), ...])`",
        "pipeline": _FLOWS,
        "Message": 'write `forkq.configure().push({"class": ..., "args": [...]})`',
        "Middleware": "write functions in `forkq.middleware.server` and `.client`",
        "CurrentMessage": "write `forkq.current_job()`",
        "Results": _RESULTS,
        "Retry": "raise any exception; a delay: `backoff=`",
        "TimeLimitExceeded": "write `forkq.TimeLimit`; it is no `Exception`",
        "Shutdown": "write `forkq.Shutdown`, or ask `forkq.stopping()`",
        "AsyncIO": "leave it out: a job may be `async def`",
        "ConcurrentRateLimiter": "write `[limits]` in forkq.toml, for a queue",
        "BucketRateLimiter": "write `[rates]` in forkq.toml, for a queue",
        "WindowRateLimiter": "write `[rates]` in forkq.toml, for a queue",
        "cron": 'write `@forkq.every("CRON")`',
        "PeriodiqMiddleware": "leave it out: the clock runs periodic jobs",
    },
    results={
        "get_result": _RESULTS,
        "message_id": "a push returns the jid itself, a string",
    },
    settings={
        "dramatiq_broker": "write `FORKQ` in Django's settings (docs/django.md)",
        "dramatiq_result_backend": _RESULTS,
    },
)
