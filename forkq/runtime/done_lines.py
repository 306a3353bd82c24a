"""The line that each job writes when it is done, rendered in less than structlog's chain needs.

The processor hands over values; the log's writer renders them. In a format for machines the chain
renders one line of each class and queue with marks in place of what differs: the template.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from ..units import format_duration
from ..wire.printable import NAME_LIMIT
from .log_console import SENTENCE, job_line
from .log_values import AT, iso

_MOST_TEMPLATES: Final = 1000
# Marks that no other value of a line contains.
_STAMP, _JID, _WAITED, _ELAPSED = 1.0, "forkqjid0forkqjid", 77_777.125, 88_888.125
_MARKS: Final = (iso(_STAMP), _JID, repr(_WAITED), repr(_ELAPSED))
_LONGEST_JID: Final = 64

# The values of a DoneJob, as the processor hands them over: a plain tuple is made faster.
DoneValues: TypeAlias = "tuple[float, object, object, str, int, float | None, float]"


class DoneJob(NamedTuple):
    """A job that is done: ``at`` epoch seconds, ``waited`` in its queue and ``elapsed`` in
    seconds; ``waited`` is None if the payload does not say since when it waits."""

    at: float
    name: object
    jid: object
    queue: str
    attempt: int
    waited: float | None
    elapsed: float

    def values(self) -> dict[str, Any]:
        """The values of the job's line."""
        values: dict[str, Any] = {
            AT: self.at,
            "class": self.name,
            "jid": self.jid,
            "queue": self.queue,
            "attempt": self.attempt,
        }
        if self.waited is not None:
            values["waited"] = round(self.waited, 3)
        return {**values, "elapsed": round(self.elapsed, 3), SENTENCE: sentence(self)}


class DoneLines:
    """Renders the lines of done jobs. ``render`` makes the text of a line at INFO with structlog's
    chain. ``console``: whether that is for people."""

    def __init__(self, render: Callable[[dict[str, Any]], str], *, console: bool) -> None:
        self._render = render
        self._console = console
        self._templates: dict[tuple[object, ...], str] = {}

    def line(self, values: DoneValues) -> str:
        """The line of one job. Never raises."""
        at, name, jid, queue, attempt, waited, elapsed = values
        if type(name) is not str or not _is_plain(jid):
            return self._render(DoneJob(*values).values())
        key = (name, queue, attempt, waited is None)
        template = self._templates.get(key)
        if template is None:
            template = self._templates[key] = self._template(DoneJob(*values))
        if not template:
            return self._render(DoneJob(*values).values())
        if self._console:
            return job_line(at, name, sentence(DoneJob(*values)), str(jid))
        if waited is None:
            return template % (iso(at), jid, elapsed)
        return template % (iso(at), jid, waited, elapsed)

    def _template(self, done: DoneJob) -> str:
        """The template for ``%``; "" if the line must be rendered by itself."""
        if len(self._templates) >= _MOST_TEMPLATES:
            self._templates.clear()
        if not _is_short(done.name):
            return ""
        waited = None if done.waited is None else _WAITED
        text = self._render(
            done._replace(at=_STAMP, jid=_JID, waited=waited, elapsed=_ELAPSED).values()
        ).replace("%", "%%")
        marks = [mark for mark in _MARKS if waited is not None or mark != repr(_WAITED)]
        in_order = re.search(".*".join(map(re.escape, marks)), text, re.DOTALL) is not None
        if self._console:
            return text
        if not in_order or any(text.count(mark) != 1 for mark in marks):
            return ""
        for mark in marks:
            text = text.replace(mark, "%.3f" if mark in _MARKS[2:] else "%s")
        return text


def sentence(done: DoneJob) -> str:
    """The sentence about a done job, for the console."""
    text = f"done in {format_duration(done.elapsed)}"
    return text if done.waited is None else f"{text}, waited {format_duration(done.waited)}"


def _is_plain(jid: object) -> bool:
    return type(jid) is str and len(jid) <= _LONGEST_JID and jid.isalnum() and jid.isascii()


def _is_short(name: object) -> bool:
    return type(name) is str and len(name) <= NAME_LIMIT and name.isprintable()
