"""The report: what became of each job that was pushed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from forkq import api

from .screen import Screen
from .show import Show
from .work import PushedJob


class Account:
    """Each pushed job is in one place: ``done`` if its result is on disk, else where Redis has it
    (``dead``, with the reason, or ``waiting``), else ``lost``."""

    def __init__(self, pushed: list[PushedJob], folder: Path) -> None:
        self.pushed = pushed
        self.done: list[PushedJob] = []
        self.dead: dict[PushedJob, str] = {}
        self.waiting: list[PushedJob] = []
        self.lost: list[PushedJob] = []
        for job in pushed:
            result = folder / job.result
            if result.is_file():
                self.done.append(job)
            elif (found := api.find(job.jid)) is None:
                # It may have ended just now: a tree that is interrupted is still at work.
                (self.done if result.is_file() else self.lost).append(job)
            elif found.location == "dead":
                payload = json.loads(found.payload)
                self.dead[job] = f"{payload['error_class']}: {payload['error_message']}"
            else:
                self.waiting.append(job)

    def exit_code(self) -> int:
        """1 unless every job is done or dead."""
        return 1 if self.waiting or self.lost else 0

    def verdict(self) -> str:
        """The one line that counts."""
        waiting = f" + waiting {len(self.waiting)}" if self.waiting else ""
        ended = f"done {len(self.done)} + dead {len(self.dead)}"
        return f"pushed {len(self.pushed)} = {ended}{waiting}, lost {len(self.lost)}"


def report(account: Account, show: Show, folder: Path, screen: Screen) -> None:
    """Shows the account, and writes it to summary.json for programs."""
    kinds = Counter(job.kind for job in account.done)
    causes = Counter(f"{job.kind} {job.source}: {why}" for job, why in account.dead.items())
    done = ", ".join(f"{kind} {number}" for kind, number in kinds.items())
    rows = [("result", account.verdict()), ("done", done)]
    rows += [("dead", f"{n} x {why}") for why, n in causes.most_common(8)]
    if (child := show.victim) is not None:
        again = len(show.progress.recovered)
        rows.append(("killed", f"{child.name}, pid {child.pid}; jobs that ran again: {again}"))
    rows += [("time", f"{show.elapsed:.1f} s"), ("look at", str(folder / "index.html"))]
    style = "bold red" if account.exit_code() else "bold green"
    for name, text in [("", ""), *rows]:
        screen.say(f"{name:<9}{text}".rstrip(), style if name == "result" else "")
    content = {
        "pushed": [job._asdict() for job in account.pushed],
        "done": [job.jid for job in account.done],
        "dead": {job.jid: why for job, why in account.dead.items()},
        "waiting": [job.jid for job in account.waiting],
        "lost": [job.jid for job in account.lost],
        "recovered": sorted(show.progress.recovered),
        "killed": show.victim.pid if show.victim else None,
    }
    (folder / "summary.json").write_text(f"{json.dumps(content, indent=1)}\n", encoding="utf-8")
