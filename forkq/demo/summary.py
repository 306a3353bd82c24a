"""The summary: the books in words, and as a file for programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .books import Account
from .plan import Pushed
from .screen import count, shortened
from .tally import Tally
from .teller import Kill
from .tree import Stopped

_CAUSES_SHOWN: Final = 8


@dataclass(frozen=True, slots=True)
class Summary:
    """All that is known when the tree is gone."""

    folder: Path
    pushed: Sequence[Pushed]
    account: Account
    tally: Tally
    kill: Kill | None
    stopped: Stopped
    seconds: float

    def verdict(self) -> str:
        """The one line that counts."""
        account = self.account
        waiting = f" + waiting {len(account.waiting)}" if account.waiting else ""
        sign = "=" if account.pushed == len(self.pushed) else "!="
        return (
            f"pushed {len(self.pushed)} {sign} done {len(account.done)} + dead "
            f"{len(account.dead)}{waiting}, lost {len(account.lost)}"
        )

    def rows(self) -> list[tuple[str, str]]:
        """For the screen: a name and a text each."""
        rows = [
            ("books", self.verdict()),
            ("done", _by_kind(self.pushed, self.account.done)),
            *(("dead", line) for line in self._deaths()),
            ("waiting", self._waiting()),
            ("lost", _by_kind(self.pushed, self.account.lost)),
            ("retried", self._retried()),
            ("killed", self._killed()),
            (
                "time",
                f"{self.seconds:.1f} s, {count(self.tally.best_second, 'job')} in the best second",
            ),
            ("stopped", f"{self.stopped.processes} processes in {self.stopped.seconds:.1f} s"),
            *self._results(),
        ]
        return [(name, text) for name, text in rows if text]

    def write(self) -> None:
        """Writes ``summary.json`` beside the results."""
        content = {
            "pushed": [
                {"jid": job.jid, "job": job.kind, "source": job.source, "result": job.result}
                for job in self.pushed
            ],
            "done": sorted(self.account.done),
            "dead": dict(self.account.dead),
            "waiting": sorted(self.account.waiting),
            "lost": sorted(self.account.lost),
            "recovered": sorted(self.tally.again),
            "retried": sorted(self.tally.retried),
            "killed": self.kill.child.pid if self.kill else None,
        }
        path = self.folder / "summary.json"
        path.write_text(f"{json.dumps(content, indent=1)}\n", encoding="utf-8")

    def _deaths(self) -> list[str]:
        """Each cause once: the many sizes of one bad picture die of the same."""
        dead = self.account.dead
        causes = Counter(
            f"{job.kind} {shortened(job.source)}: {dead[job.jid]}"
            for job in self.pushed
            if job.jid in dead
        )
        lines = [
            f"{cause} ({count(jobs, 'job')})" if jobs > 1 else cause
            for cause, jobs in causes.items()
        ]
        more = len(lines) - _CAUSES_SHOWN
        rest = [f"and {more} more, see summary.json"] if more > 0 else []
        return [*lines[:_CAUSES_SHOWN], *rest]

    def _waiting(self) -> str:
        kinds = _by_kind(self.pushed, self.account.waiting)
        return f"{kinds}; they went with the demo's own server" if kinds else ""

    def _retried(self) -> str:
        return _by_kind(self.pushed, self.tally.retried)

    def _killed(self) -> str:
        if self.kill is None:
            return ""
        return (
            f"{self.kill.child.name}, pid {self.kill.child.pid}, with {self.kill.in_hand} in hand; "
            f"{len(self.tally.again)} ran again with a crash record"
        )

    def _results(self) -> list[tuple[str, str]]:
        page = self.folder / "index.html"
        shown = [("look at", shortened(page))] if page.exists() else []
        return [("results", shortened(self.folder)), *shown]


def _by_kind(pushed: Iterable[Pushed], jids: Container[str]) -> str:
    counts = Counter(job.kind for job in pushed if job.jid in jids)
    return ", ".join(f"{kind} {jobs}" for kind, jobs in counts.items())
