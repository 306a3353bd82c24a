"""What the jobs themselves say that they did; and what the kernel says about their processes."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

OUTCOMES = ("end", "failed", "interrupted")
BREACHES = ("overlap", "overlimit")


@dataclass(slots=True)
class Run:
    """One execution: when it began, in which process, as which attempt, and how it ended: one of
    OUTCOMES, or "" if its process died in it."""

    begun: float
    process: str
    attempt: int
    outcome: str = ""
    ended: float = 0.0


@dataclass(frozen=True, slots=True)
class Breach:
    """A job found its own lock taken, or all locks of its limit."""

    kind: str
    number: str
    process: str
    at: float


class Ledger:
    """Reads what the hosts have written. `read` may be called at any time, for what is new."""

    def __init__(self, folder: Path) -> None:
        self.runs: defaultdict[str, list[Run]] = defaultdict(list)
        self.breaches: list[Breach] = []
        self.ended: set[str] = set()
        self.last_sign: dict[str, float] = {}  # of each process
        self._folder = folder
        self._offsets: dict[Path, int] = {}

    def read(self) -> None:
        """Takes in all whole lines that were added."""
        for path in self._folder.glob("ledger-*"):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offsets[path] = self._offsets.get(path, 0) + len(whole)
            for line in whole.decode().splitlines():
                self._take(*line.split())

    def _take(self, event: str, number: str, attempt: str, process: str, at: str) -> None:
        self.last_sign[process] = float(at)
        if event == "alive":
            return
        if event == "begin":
            self.runs[number].append(Run(float(at), process, int(attempt)))
        elif event in BREACHES:
            self.breaches.append(Breach(event, number, process, float(at)))
        else:
            mine = [run for run in self.runs[number] if run.process == process and not run.outcome]
            mine[-1].outcome, mine[-1].ended = event, float(at)
            if event == "end":
                self.ended.add(number)

    def runs_of(self, number: str) -> list[Run]:
        """Of one job, in the order of time: each host's ledger is read by itself."""
        return sorted(self.runs.get(number, ()), key=lambda run: run.begun)


class Watch:
    """Learns of the life of each process that runs jobs: it connects when it has its first job, and
    the kernel ends the connection with the process."""

    def __init__(self, folder: Path) -> None:
        self.born: dict[str, float] = {}
        self.died: dict[str, float] = {}
        self._names: dict[socket.socket, str] = {}
        self._selector = selectors.DefaultSelector()
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(folder / "watch"))
        self._door.listen(256)
        self._selector.register(self._door, selectors.EVENT_READ)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch")
        self._thread.start()

    def died_before(self, process: str, moment: float) -> bool:
        """Whether it was dead by then."""
        return self.died.get(process, float("inf")) <= moment

    def close(self) -> None:
        """Ends the watch."""
        self._closing.set()
        self._thread.join()
        for each in [self._door, *self._names]:
            each.close()
        self._selector.close()

    def _watch(self) -> None:
        while not self._closing.is_set():
            for key, _ in self._selector.select(0.1):
                end = key.fileobj
                assert isinstance(end, socket.socket)
                if end is self._door:
                    self._admit(end.accept()[0])
                else:
                    self._hear(end)

    def _admit(self, end: socket.socket) -> None:
        self._names[end] = ""
        self._selector.register(end, selectors.EVENT_READ)

    def _hear(self, end: socket.socket) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = end.recv(200)
        now = time.monotonic()
        if data:
            self._names[end] = data.decode().strip()
            self.born[self._names[end]] = now
            return
        self.died[self._names.pop(end)] = now
        self._selector.unregister(end)
        end.close()
