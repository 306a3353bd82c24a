"""The result of a job, for people: what stands in secrets is masked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ...features.results.parts import Outcome, Result, read
from ...servers import Server, Servers, first_found
from ...wire.times import now
from ..door import servers as all_servers
from ..masks import MASK, has_secrets, masked, masked_text, parameters_of


@dataclass(frozen=True, slots=True)
class JobResult:
    """What is known of the result of the job ``jid`` of the class ``job``. ``outcome``: how it has
    ended, "" while it waits or runs, and ``at``: when. ``until``: for how long this is kept; both
    in epoch seconds. ``value``: what it has returned. ``error_class`` and ``error_message``: why
    there is no value, "" if there is one."""

    jid: str
    job: str
    outcome: Outcome | Literal[""]
    at: float
    until: float
    value: Any
    error_class: str
    error_message: str


def job_result(jid: str, where: Server | Servers | None = None) -> JobResult | None:
    """What is known of the result of a job; None if nothing is. The value of a job that has secret
    arguments is masked, and so are secrets in that of another one. Raises ServerUnavailable."""
    return first_found(where or all_servers(), lambda server: _on(server, jid))


def _on(server: Server, jid: str) -> JobResult | None:
    key = server.keys.result(jid)
    raw, left = server.ask_leniently(("GET", key), ("PTTL", key))
    found = None if raw is None else read(raw)
    if found is None:
        return None
    return shown_result(server, jid, found, now() + max(0, left or 0) / 1000)


def shown_result(server: Server, jid: str, found: Result, until: float) -> JobResult:
    """What was read of a result, for people."""
    value, error = found.value, found.error
    if found.outcome == "done" and error is None:
        value = MASK if has_secrets(parameters_of(server, found.job)) else masked(value)
    return JobResult(
        jid,
        found.job,
        found.outcome,
        found.at,
        until,
        value,
        "" if error is None else error.name,
        "" if error is None else masked_text(error.message),
    )
