"""RQ's words, and those of django-rq and rq-scheduler."""

from __future__ import annotations

from typing import Final

from .words import Words

_PUSH: Final = "decorate the function with `@forkq.job` and write `f.perform_async(...)`"
_RESULTS: Final = (
    "write `result_ttl=SECONDS` at the job, and `J.result(jid, timeout=SECONDS)` (docs/results.md)"
)
_EVERY: Final = 'write `@forkq.every("CRON", tz=...)` on the job, or `[[cron]]` in forkq.toml'
_OPTIONS: Final = {
    "timeout": "write `timeout=SECONDS`; forkq has no limit of its own (RQ: 180 s)",
    "result_ttl": _RESULTS,
    "ttl": "write `expires_in=SECONDS` (docs/expiry.md)",
    "failure_ttl": "write `dead_days` under `[forkq]`, for all jobs",
    "depends_on": "the first job pushes the next one, as its last step",
    "at_front": "no such thing: use a queue that comes first",
    "meta": 'write `J.set({"my_key": ...})`; progress: `forkq.current_job().progress(...)`',
    "description": "leave it out, or write `tags=[...]`",
    "retry": "write `retry=N` (without it: 25 times); intervals: `backoff=[10, 30]`",
    "on_failure": "write a `retries_exhausted` hook, or `@forkq.on_error`",
    "on_success": "call it in the job, as its last step",
    "on_stopped": "catch `forkq.Cancelled` in the job, and raise it again (docs/cancelling.md)",
}

RQ: Final = Words(
    library="rq",
    packages=frozenset({"rq", "django_rq", "rq_scheduler", "flask_rq2"}),
    decorators={"job": "write `@forkq.job(queue=...)`"},
    options={
        "queue": "the same: `queue=`",
        "connection": "leave it out: write `url` under `[redis]`",
        "queue_class": "leave it out",
        "webhooks": "send the request from a middleware or a hook",
        **_OPTIONS,
    },
    calls={
        "enqueue": _PUSH,
        "enqueue_call": _PUSH,
        "enqueue_many": "write `f.perform_bulk([(...), ...])`",
        "enqueue_in": "write `f.perform_in(TIMEDELTA, ...)`",
        "enqueue_at": "write `f.perform_at(MOMENT, ...)`; the datetime must be aware",
        "enqueue_job": _PUSH,
    },
    job_calls={"delay": "write `f.perform_async(...)`; it returns a jid, a string"},
    keywords={
        "job_timeout": _OPTIONS["timeout"],
        "job_id": 'write `J.set({"jid": ...})`, 24 hex digits; or keep the jid of the push',
        "repeat": _EVERY,
        "unique": "write `unique_for=SECONDS` (docs/unique.md)",
        "rate_limit": "write `[rates]` or `[limits]` in forkq.toml, for a queue",
        **_OPTIONS,
    },
    names={
        "Queue": "write `queue=` at each job; to look into one: `forkq.Queue(NAME)`",
        "Worker": "run `forkq start`",
        "SimpleWorker": "run `forkq start`; in tests `forkq.testing.drain()`",
        "SpawnWorker": "run `forkq start`",
        "Retry": _OPTIONS["retry"],
        "Repeat": _EVERY,
        "Callback": "write a hook, or call the function in the job",
        "Job": "to find a job: `forkq.api.find(jid)`; its result: `forkq.result(jid)`",
        "get_current_job": "write `forkq.current_job()`",
        "get_queue": "write `queue=` at each job",
        "get_scheduler": _EVERY,
        "Scheduler": _EVERY + "; at run time `forkq.api.cron.add`",
        "CronScheduler": _EVERY,
        "Dependency": _OPTIONS["depends_on"],
        "Group": "write `f.perform_bulk([(...), ...])`",
        "Connection": "write `url` under `[redis]`",
        "FailedJobRegistry": "write `forkq.api.DeadSet()`; on the command line `forkq dead`",
        "StartedJobRegistry": "write `forkq.api.running()`",
        "ScheduledJobRegistry": "`forkq stats` counts it; one job: `forkq.api.find(jid)`",
        "FinishedJobRegistry": _RESULTS,
        "JobTimeoutException": "write `forkq.TimeLimit`; it is no `Exception`",
        "send_stop_job_command": "write `forkq.cancel(jid, force=True)` (docs/cancelling.md)",
    },
    results={
        "meta": _OPTIONS["meta"],
        "save_meta": "leave it out: the heartbeat sends the progress",
        "cancel": "write `forkq.cancel(jid)` (docs/cancelling.md)",
        "delete": "write `forkq.api.find(jid)`, and delete what it returns",
        "requeue": "write `forkq.api.DeadSet()`, or `forkq retry JID`",
        "id": "a push returns the jid itself, a string",
        "refresh": "leave it out: each question asks Redis",
        "exc_info": "write `forkq.api.find(jid)`; it has the error",
        **dict.fromkeys(("result", "return_value", "latest_result", "results"), _RESULTS),
        **dict.fromkeys(
            ("get_status", "is_finished", "is_failed", "is_started", "is_queued", "get_position"),
            "write `forkq.is_alive(jid)`, or `forkq.api.find(jid)`: where it is",
        ),
    },
    makers=frozenset({"fetch", "fetch_job", "get_current_job"}),
    settings={
        "rq_queues": "write `queues` under `[capsules.NAME]`; the options at each job",
        "rq": "write forkq.toml, or `FORKQ` in Django's settings",
        "rq_exception_handlers": "write `@forkq.on_error`",
        "rq_show_admin_link": "leave it out",
    },
)
