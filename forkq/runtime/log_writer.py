"""The one writer of a process's log lines: docs/decisions/015.

Until ``begin_batching`` each line is written at once. Then lines of INFO and DEBUG wait for the
writer's thread, which writes all that wait in one call. A line of WARNING or above never waits: it
is written at once, after those that wait. A fork has no such thread and writes each line at once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import get_ident
from typing import Any, Final, TypeAlias

from .struck_lock import release_all
from .unblocked_output import UnblockedOutput

# Seconds for which a line waits.
_PAUSE: Final = 0.05
# How many lines wait at most: the thread that adds one more writes them all.
_MOST_WAITING: Final = 2000
# A longer line is written at once, so that few bytes wait.
_LONG: Final = 4000

# A finished line, or the values of one that the writer renders (``render``).
Line: TypeAlias = "str | tuple[Any, ...]"


class LogWriter:
    """Any thread may write. ``render`` makes a line of values, and must not raise. A line has no
    newline at its end."""

    def __init__(
        self, output: UnblockedOutput, render: Callable[[tuple[Any, ...]], str], encoding: str
    ) -> None:
        self._output = output
        self._render = render
        self._encoding = encoding
        self.reset()

    def reset(self) -> None:
        """Starts anew in a child after its fork: the parent writes what waits, and another thread
        may have held the lock."""
        self._output.reset()
        self._waiting: deque[Line] = deque()
        self._lock = threading.RLock()  # not a Lock: a finaliser may log during a write
        self._flusher = 0
        self._batching = False
        # Whether the next line must be attended to: nothing is batched, or the thread sleeps.
        self._is_idle = True
        # Not an Event: a job may be interrupted at any line, and one inside Event.set() would keep
        # its lock. This is one call into C.
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._ended = threading.Event()

    def put(self, line: Line) -> None:
        """Adds a line that may wait."""
        waiting = self._waiting
        waiting.append(line)
        if self._is_idle or len(waiting) >= _MOST_WAITING:
            self._attend()

    def put_now(self, line: str) -> None:
        """Writes ``line``, and those that wait before it."""
        self._waiting.append(line)
        self.flush()

    def put_text(self, line: str) -> None:
        """Adds a line of any length that may wait."""
        (self.put if len(line) <= _LONG else self.put_now)(line)

    def flush(self) -> None:
        """Writes all lines that wait. Never raises OSError."""
        if self._flusher == get_ident():
            return  # a finaliser logs during a write: the second round writes its line
        try:
            with self._lock:
                self._flush_twice()
        except BaseException:
            release_all(self._lock)
            raise

    def _flush_twice(self) -> None:
        try:
            self._flusher = get_ident()
            for _ in range(2):
                self._write_batch()
        finally:
            self._flusher = 0

    def begin_batching(self) -> threading.Thread:
        """From now on lines may wait. Returns the writer's thread. Raises RuntimeError if the
        system has no thread left."""
        thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._ended.clear()
        self._batching = True
        try:
            thread.start()
        except RuntimeError:
            self.end_batching()
            raise
        return thread

    def end_batching(self) -> None:
        """From now on no line waits. The thread ends."""
        self._batching = False
        self._is_idle = True
        self._ended.set()
        self._wake.put(None)
        self.flush()

    def _attend(self) -> None:
        if self._batching and len(self._waiting) < _MOST_WAITING:
            self._wake.put(None)
        else:
            self.flush()

    def _write_batch(self) -> None:
        """Writes the lines that wait. Each is removed when it is written: an exception that is
        raised in this thread in between loses none, at the price of a line that is written
        twice."""
        batch = self._waiting.copy()  # not list(): a loop, which fails without the GIL
        if not batch:
            return
        render = self._render
        lines = [line if type(line) is str else render(line) for line in batch]  # type: ignore[arg-type]
        text = "\n".join([*lines, ""])
        self._output.write(text.encode(self._encoding, "backslashreplace"), len(batch))
        for _ in batch:
            self._waiting.popleft()

    def _run(self) -> None:
        """Sleeps while no line waits. Lines that come while it pauses wake no thread. Only this
        thread says when it no longer sleeps: a job that is interrupted could leave that wrong."""
        while self._batching:
            self._is_idle = True
            if not self._waiting:  # after the flag: a line that comes now sees it
                self._wake.get()
            self._is_idle = False
            while not self._wake.empty():
                self._wake.get()
            self._ended.wait(_PAUSE)
            self.flush()
        self._is_idle = True
        self.flush()
