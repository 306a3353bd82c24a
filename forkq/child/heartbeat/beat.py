"""The heartbeat: at an interval, and on news, it runs a list of tasks in Redis (tasks.py).

It has its own thread and its own connection, so that a slow Redis never delays an order from
the master. It is punctual while processors compute in Python: each of its few system calls waits
for the interpreter's lock once. A C call that keeps that lock stops this thread too. Then the clock
of this host tells others that the child lives (clock/sweep.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from ...store.connection import ConnectionLost, RedisConnection, RedisError
from ...store.outage import Outage
from ...store.watch.waker import Waker
from .cancelled import WatchCancelled
from .tasks import HeartbeatTask, Snapshot

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

INTERVAL: Final = 10.0
PROGRESS_EVERY: Final = 1.0  # a person looks at it
_RETRY_PARKED_EVERY: Final = 1.0
_ACT_EVERY: Final = 1.0  # on what is cancelled


class News(Waker):
    """What wakes the heartbeat. ``set`` asks for a beat at once; any thread may call both."""

    def __init__(self) -> None:
        super().__init__()
        self.asks_for_beat = False
        self.has_progress = False
        self.progress_at = 0.0  # when the heartbeat has sent it (monotonic)

    def set(self) -> None:
        self.asks_for_beat = True
        self.wake()

    def note_progress(self) -> None:
        """A job has reported progress: it is sent within a second, without a beat."""
        if not self.has_progress:
            self.has_progress = True
            self.wake()

    def answered(self) -> None:
        """A beat follows, unless this is the end. What is set after this asks for another one."""
        self.asks_for_beat = self.has_progress = False
        self.clear()


class Heartbeat:
    """Beats from ``open`` to ``stop``: takes a ``snapshot`` and runs the tasks that are due.

    ``outage`` is shared with all that talks to Redis: any answer ends it. ``refusal`` is the
    heartbeat's own: a full server refuses a part of a record while it goes on giving out jobs.

    ``retry_parked`` is called between beats: it tries again what Redis has refused of the
    processors, and returns whether anything is left. Setting ``news`` is the same as ``soon``.
    ``cancelled``, one of the tasks, is also attended when Redis reports a change.
    ``send_progress`` writes what jobs have reported since the last beat, at most once a second.
    ``redis_at`` (monotonic) is when Redis last answered a whole beat, with refusals or without.
    """

    def __init__(
        self,
        connection: RedisConnection,
        tasks: Sequence[HeartbeatTask],
        outage: Outage,
        refusal: Outage,
        log: FilteringBoundLogger,
        *,
        snapshot: Callable[[], Snapshot],
        retry_parked: Callable[[], bool] = lambda: False,
        send_progress: Callable[[RedisConnection, Snapshot], bool] = lambda connection, now: False,
        news: News | None = None,
        cancelled: WatchCancelled | None = None,
    ) -> None:
        self._connection = connection
        self._tasks = tasks
        self._outage = outage
        self._refusal = refusal
        self._log = log
        self._snapshot = snapshot
        self._retry_parked = retry_parked
        self._send_progress = send_progress
        self._next_beat = 0.0
        self.redis_at = 0.0
        self._news = News() if news is None else news
        self._cancelled = cancelled
        self._gate = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    @property
    def redis_lost(self) -> str:
        """Why a part of this process has lost Redis; "" if one has had an answer since."""
        return self._outage.reason

    @property
    def refused(self) -> str:
        """What Redis refuses to this process now, in words; "" if nothing."""
        return self._outage.refused

    @property
    def gets_jobs(self) -> bool:
        """False if what Redis refuses keeps this process from its jobs."""
        return self._outage.gets_jobs

    def start(self) -> None:
        """Starts the thread; it waits for ``open``. Raises RuntimeError if the system has no thread
        left."""
        self._thread.start()

    def open(self) -> None:
        """Beats at once. Before, nothing of this child is in Redis: no record, no counts."""
        self._gate.set()

    def soon(self) -> None:
        """Beats now instead of at the next interval: other processes should see a change."""
        self._news.set()

    def stop(self, deadline: float, *, gone: bool) -> bool:
        """Ends the thread, and flushes the counts. Removes the record if this child is ``gone``;
        with leases left it stays, and tells the sweep that their owner is dead. Tries twice, for a
        connection that was cut. Returns whether Redis took it all by ``deadline`` (monotonic)."""
        self._ended = True
        self._news.set()
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            return False
        action = self._finish if gone else self._run_tasks
        return self._attempt(action) or (time.monotonic() < deadline and self._attempt(action))

    def beat(self) -> bool:
        """Runs the tasks that are due, in the calling thread. Returns whether Redis took it all."""
        return self._attempt(self._run_tasks)

    def _run(self) -> None:
        self._gate.wait()
        while not self._ended:
            self._news.progress_at = time.monotonic()
            self._next_beat = self._news.progress_at + INTERVAL
            self.beat()
            self._wait_for_next()

    def _wait_for_next(self) -> None:
        """Waits for the next beat, or news; meanwhile retries what is parked, and sends what jobs
        have reported."""
        while not self._news.asks_for_beat and (left := self._next_beat - time.monotonic()) > 0:
            pause = min(left, _RETRY_PARKED_EVERY) if self._retry_parked_jobs() else left
            if self._news.has_progress:
                pause = min(pause, self._send_progress_if_due())
            if self._cancelled is not None and self._cancelled.is_open:
                pause = min(pause, _ACT_EVERY)
            self._sleep(pause)
            self._news.clear()
        self._news.answered()

    def _sleep(self, seconds: float) -> None:
        """Sleeps until there is news, or until Redis reports what is cancelled."""
        watch, connection = self._cancelled, self._connection
        if watch is None or not watch.hears(connection):
            self._news.sleep(seconds)
            return
        try:
            connection.listen(seconds, self._news.fd)
        except RedisError:  # the next beat connects, and reads it then
            connection.close()
            return
        if watch.wants_attention:
            self._attempt(lambda: watch.refresh(connection))

    def _send_progress_if_due(self) -> float:
        """Sends the progress, if a second has passed since it was last sent. Returns the seconds
        until it may be sent again."""
        now = time.monotonic()
        if now >= self._news.progress_at + PROGRESS_EVERY:
            self._news.has_progress, self._news.progress_at = False, now
            self._attempt(lambda: self._send_progress(self._connection, self._snapshot()))
        return max(0.0, self._news.progress_at + PROGRESS_EVERY - now)

    def _retry_parked_jobs(self) -> bool:
        """Returns whether some are parked still."""
        try:
            return self._retry_parked()
        except Exception as error:  # noqa: BLE001 - a dead heartbeat would cost running jobs
            self._log.error("parked jobs not retried; the next beat tries again", exc_info=error)
            return False

    def _attempt(self, action: Callable[[], bool]) -> bool:
        """Whether Redis took it all. ``action`` returns whether it has asked Redis anything: only
        then has Redis answered."""
        asked = time.monotonic()
        try:
            if self._connection.stale():
                self._connection.close()  # it was cut in an outage that is over: not a new one
            self._connection.connect()
            has_asked = action()
        except ConnectionLost as error:
            self._connection.close()
            for task in self._tasks:
                task.after_lost_reply()
            self._outage.begin(error)
        except RedisError as error:
            self._connection.close()
            self._refusal.begin(error)
            self.redis_at = time.monotonic()
        except Exception as error:  # noqa: BLE001 - a dead heartbeat would cost running jobs
            self._connection.close()
            self._log.error("a heartbeat failed; the next one follows", exc_info=error)
        else:
            if has_asked:
                self._outage.end(asked)
                self._refusal.end()
                self.redis_at = time.monotonic()
            return True
        return False

    def _run_tasks(self) -> bool:
        """Runs each task, and raises what the server refused only then: it may take the rest."""
        now = self._snapshot()
        refusals = [self._refusal_of(task, now) for task in self._tasks]
        for refusal in filter(None, refusals):
            raise refusal
        return True

    def _refusal_of(self, task: HeartbeatTask, now: Snapshot) -> RedisError | None:
        try:
            task.attend(self._connection, now)
        except ConnectionLost:
            raise
        except RedisError as error:
            return error
        return None

    def _finish(self) -> bool:
        """Runs the last step of each task, the last task first: the record goes when all else is
        written."""
        now = self._snapshot()
        for task in reversed(self._tasks):
            task.finish(self._connection, now)
        return True
