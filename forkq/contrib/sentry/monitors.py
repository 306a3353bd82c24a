"""Cron monitors: each run of a periodic job is a check-in, and the schedule is the monitor's."""

from __future__ import annotations

import hashlib
import math
import re
import uuid
from typing import Any, Final

from sentry_sdk.crons import MonitorStatus, capture_checkin

from forkq import default_client, registry
from forkq.contrib.runs import ObservedRun
from forkq.cron.entry import Entry
from forkq.wire.validation import time_limit

_LONGEST_SLUG: Final = 50
_NAMESPACE: Final = uuid.UUID("6f9e6b53-6e4b-5c0e-9f0f-0d0b7d1a5f55")


class CheckIn:
    """The check-in of one run. A run that the stop has interrupted is the same check-in when it
    runs again: its id comes from the jid and the attempt."""

    def __init__(self, entry: Entry, run: ObservedRun) -> None:
        self._slug = slug_of(entry.name)
        self._config: Any = monitor_config(entry)
        self._id = uuid.uuid5(_NAMESPACE, f"{run.jid}/{run.attempt}").hex

    def begin(self) -> None:
        """Sends that the job runs."""
        self._send(MonitorStatus.IN_PROGRESS, None)

    def end(self, run: ObservedRun) -> None:
        """Sends that the run has ended. One that was interrupted, or snoozes, goes on later."""
        if run.is_over:
            self._send(MonitorStatus.ERROR if run.failed else MonitorStatus.OK, run.elapsed)

    def _send(self, status: str, duration: float | None) -> None:
        capture_checkin(self._slug, self._id, status, duration, self._config)


def check_in_of(run: ObservedRun) -> CheckIn | None:
    """The check-in of a run; None if no entry that this app knows has enqueued the job, or if
    Sentry cannot express its schedule: one with seconds."""
    marks = run.job.get("forkq")
    name = marks.get("cron") if type(marks) is dict else None
    entry = _entry(name) if type(name) is str else None
    return None if entry is None or len(entry.schedule.fields) == _SECONDS else CheckIn(entry, run)


_SECONDS: Final = 6  # an expression of so many fields begins with seconds


def _entry(name: str) -> Entry | None:
    """The entry of a periodic job, from the code or from forkq.toml."""
    spec, config = registry.periodic.get(name), default_client.server_config()
    if spec is not None:
        return spec.entry  # type: ignore[no-any-return]
    return next((each for each in config.cron if each.name == name), None) if config else None


def monitor_config(entry: Entry) -> dict[str, Any]:
    """The settings of a monitor. Times are minutes, as Sentry has them, rounded up."""
    found: dict[str, Any] = {
        "schedule": {"type": "crontab", "value": " ".join(entry.schedule.fields)},
        "timezone": entry.schedule.tz,
    }
    if entry.jitter:
        found["checkin_margin"] = 1 + math.ceil(entry.jitter / 60)
    limit = time_limit(entry.job, "hard_timeout") or time_limit(entry.job, "timeout")
    if limit:
        found["max_runtime"] = math.ceil(limit / 60)
    return found


def slug_of(name: str) -> str:
    """The monitor's name in Sentry: lower-case letters, digits, "-" and "_", 50 at most."""
    slug = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-")
    if slug and len(slug) <= _LONGEST_SLUG:
        return slug
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{slug[: _LONGEST_SLUG - 9]}-{digest}".lstrip("-")
