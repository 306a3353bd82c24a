"""The journal: a line on disk for each beginning and end of a job, whoever runs it.

The children append, the demo reads along. A line is one ``write`` in append mode, so lines of
different processes never mix, and a kill leaves whole lines only.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from ..wire.times import now

NAME: Final = "journal.jsonl"

What = Literal["began", "done", "failed"]


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that happened to a job. Times in epoch seconds.

    ``retry`` is its retry count (None at the first run); ``crashed`` is when the child that ran it
    before was found dead, as its payload's crash record says (0: never).
    """

    what: What
    at: float
    jid: str
    job: str
    label: str
    pid: int
    retry: int | None = None
    crashed: float = 0.0
    error: str = ""


def append(path: Path, what: What, job: dict[str, Any], error: str = "") -> None:
    """Writes down what happened to ``job``, a payload."""
    event = Event(
        what=what,
        at=now(),
        jid=job["jid"],
        job=job["class"],
        label="/".join(Path(job["args"][1]).parts[-2:]),
        pid=os.getpid(),
        retry=job.get("retry_count"),
        crashed=max((crash["at"] for crash in crashes(job)), default=0.0),
        error=error,
    )
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, msgspec.json.encode(event) + b"\n")
    finally:
        os.close(fd)


def crashes(job: dict[str, Any]) -> list[dict[str, Any]]:
    """The crash records in a payload, as the rescue wrote them."""
    found: list[dict[str, Any]] = job.get("forkq", {}).get("crashes", [])
    return found


class Journal:
    """Reads a journal that is still being written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def news(self) -> list[Event]:
        """What was written since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                content = file.read()
        except FileNotFoundError:
            return []  # no job has begun yet
        whole = content[: content.rfind(b"\n") + 1]
        self._read += len(whole)
        return [msgspec.json.decode(line, type=Event) for line in whole.splitlines()]
