"""Pushes the jobs of a plan, and knows of each what Redis said to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import forkq
from forkq.errors import ServerUnavailable

from .plan import BURIED, Plan

NOT_PUSHED, PUSHED, IN_DOUBT = range(3)
PAUSE = 0.02
AFTER_DOUBT = 0.3  # or all pushes of an outage would be in doubt
UNREGISTERED = "os.system"
QUEUE = "default"


class Traffic:
    """`state` has one byte for each job: NOT_PUSHED, PUSHED, or IN_DOUBT if the reply was lost. A
    job in doubt is not pushed again; it may run or not. `unsure` counts those in doubt, and those
    that never end."""

    def __init__(self, plan: Plan, url: str, may_push: Callable[[int], bool]) -> None:
        self.state = bytearray(len(plan.kinds))
        self.unsure = 0
        self._plan = plan
        self._may_push = may_push
        self._client = forkq.Client(url, timeout=2, connect_timeout=1)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._push_all, name="traffic")

    def start(self) -> None:
        """Begins to push."""
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether all jobs were pushed."""
        return not self._thread.is_alive()

    def close(self) -> None:
        """Ends it, also in the middle."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._client.close()

    def _push_all(self) -> None:
        for batch in self._plan.batches:
            while not self._may_push(batch.start):
                if self._closing.wait(PAUSE):
                    return
            for kind in dict.fromkeys(self._plan.kinds[number] for number in batch):
                self._push(kind, [number for number in batch if self._plan.kinds[number] == kind])

    def _push(self, kind: str, numbers: list[int]) -> None:
        while not self._closing.is_set():
            try:
                self._send(kind, numbers)
            except ServerUnavailable as error:
                if not error.pushed and not error.unknown:  # as it says: none is in Redis
                    self._closing.wait(PAUSE)
                    continue
                self._note(numbers, PUSHED if error.pushed else IN_DOUBT)
                return
            self._note(numbers, PUSHED)
            return

    def _send(self, kind: str, numbers: list[int]) -> None:
        values = self._plan.values
        args = [[number, values[number]] for number in numbers]
        if kind == "malformed":
            self._send_raw(numbers)
        elif kind == "unknown":
            self._client.push_bulk({"class": UNREGISTERED, "args": args, "retry": 0})
        elif kind == "scheduled":
            at = [time.time() + values[number] for number in numbers]
            self._client.push_bulk({"class": kind, "args": args, "at": at})
        else:
            queue = "limited" if kind == "limited" else QUEUE
            self._client.push_bulk(
                {"class": kind, "args": args, "queue": queue, **INNOCENT.get(kind, {})}
            )

    def _send_raw(self, numbers: list[int]) -> None:
        """What is no JSON: forkq's client would refuse it. After an error it may be there."""
        payloads = [f"{number} is no job".encode() for number in numbers]
        sent = False
        try:
            with self._client.connection() as connection:
                sent = True
                connection.call("LPUSH", f"queue:{QUEUE}", *payloads)
        except forkq.ServerRefused:
            raise
        except ServerUnavailable as error:
            if sent:
                error.unknown = [str(number) for number in numbers]
            raise

    def _note(self, numbers: list[int], state: int) -> None:
        for number in numbers:
            self.state[number] = state
        if state == IN_DOUBT or self._plan.kinds[numbers[0]] in BURIED:
            self.unsure += len(numbers)
        if state == IN_DOUBT:
            self._closing.wait(AFTER_DOUBT)


# The harness kills processes. What is innocent must never be buried for that.
INNOCENT = {kind: {"crashes": 100} for kind in ("fast", "slow", "failing", "limited", "leak")}
