"""The result of a job in words, for commands and pages."""

from __future__ import annotations

from typing import Any, Final

from ...api.features.results import JobResult
from ...units import format_moment
from ...wire.payload import encode
from ...wire.printable import cut, printable, with_message

_LONGEST: Final = 500  # characters of a value, or of an error


def result_text(found: JobResult) -> str:
    """How the job has ended, and what it has returned, such as "done, and has returned 7"."""
    if not found.outcome:
        return "it waits or runs"
    error = found.error_message
    if found.error_class:
        error = with_message(found.error_class, error)
    if found.outcome == "done" and error:
        return f"done; what it has returned was not kept: {_short(found.error_message)}"
    if found.outcome == "done":
        return f"done, and has returned {_short(encode(found.value).decode())}"
    return f"{found.outcome}: {_short(error)}"


def result_object(found: JobResult) -> dict[str, Any]:
    """What ``--json`` has of a result."""
    known: dict[str, Any] = {"jid": found.jid, "job": found.job, "outcome": found.outcome or None}
    known |= {"at": found.at or None, "until": found.until}
    if found.error_class or found.error_message:
        return {**known, "error": {"class": found.error_class, "message": found.error_message}}
    return {**known, "value": found.value} if found.outcome else known


def kept_until(found: JobResult) -> str:
    """For how long it is kept."""
    return f"its result expires {format_moment(found.until)}"


def _short(text: str) -> str:
    return printable(cut(text, _LONGEST))
