"""How far the jobs are, as the journal tells that the app's middleware writes."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any


class Progress:
    """What the jobs have done so far. ``done`` and ``failed``: jids by kind."""

    def __init__(self, journal: Path) -> None:
        self.done: dict[str, set[str]] = defaultdict(set)
        self.failed: dict[str, set[str]] = defaultdict(set)
        self.recovered: dict[str, float] = {}  # when a job whose child had died began again
        self.running: dict[int, dict[str, str]] = defaultdict(dict)  # results by pid and jid
        self._seconds: Counter[int] = Counter()
        self._journal = journal
        self._position = 0

    def read(self) -> list[dict[str, Any]]:
        """Counts the events that were written since the last call, and returns them."""
        if not self._journal.exists():
            return []  # no job has begun yet
        with self._journal.open("rb") as file:
            file.seek(self._position)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._position += len(whole)
        events = [json.loads(line) for line in whole.splitlines()]
        for event in events:
            self._count(**event)
        return events

    def ended(self, kind: str) -> int:
        """Jobs of one kind that are done or have failed; what did both counts once."""
        return len(self.done[kind] | self.failed[kind])

    def rate(self) -> float:
        """Jobs done per second, in the last two whole seconds."""
        return sum(self.chart()[-2:]) / 2

    def chart(self) -> list[int]:
        """Jobs done in each of the last 30 whole seconds, oldest first."""
        now = int(time.time())
        begin = max(min(self._seconds, default=now), now - 30)
        return [self._seconds[second] for second in range(begin, now)]

    def _count(
        self, what: str, at: float, jid: str, job: str, result: str, pid: int, **more: Any
    ) -> None:
        if what == "began":
            self.running[pid][jid] = result
            if more["crashed"]:
                self.recovered.setdefault(jid, at)
            return
        self.running[pid].pop(jid, None)
        (self.done if what == "done" else self.failed)[job].add(jid)
        self._seconds[int(at)] += what == "done"
