"""Killing one child after another under load, and the account of what that did to the jobs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from itertools import pairwise

import psutil
from redis import Redis

from tests.process.shared import Journal, leased, waiting, workers
from tests.support.tree import ForkqTree
from tests.support.waiting import wait_until


class RandomKills:
    """``kills`` are the pids of the dead with the time of the kill (monotonic)."""

    def __init__(self, tree: ForkqTree, redis: Redis, journal: Journal) -> None:
        self.kills: dict[int, float] = {}
        self._tree = tree
        self._redis = redis
        self._journal = journal

    def run(
        self, *, every: float, until: Callable[[], bool], deadline: float, most: int = 100
    ) -> None:
        """A SIGKILL to the next child in turn that has begun a job, every so many seconds, until a
        condition holds. However slow the machine is, each child gets something done, and after
        the most kills they have an end."""
        end = time.monotonic() + deadline
        while not self._pause(every, until):
            assert time.monotonic() < end, f"jobs left after {deadline} s: {self._tree.log_text()}"
            if len(self.kills) < most:
                self._kill_one()

    def assert_nothing_lost(self, jids: Iterable[str]) -> None:
        """Every job ended, and none is left anywhere."""
        lost = set(jids) - self._journal.jids("end")
        assert not lost, f"{len(lost)} jobs lost: {sorted(lost)[:5]}"
        assert not waiting(self._redis)
        assert not leased(self._redis)
        assert not self._redis.zcard("retry")
        assert not self._redis.zcard("dead")

    def assert_only_the_killed_ran_twice(self, jids: Iterable[str]) -> None:
        """A job that ran again had run in a child that was killed; and no more of them per child
        than it can have had in flight."""
        runs = self._journal.runs()
        assert set(runs) == set(jids)
        needless = [
            jid for jid, lines in runs.items() if any(x.pid not in self.kills for x in lines[:-1])
        ]
        assert not needless, f"ran again without need: {needless[:5]}"
        for lines in runs.values():
            for run, rerun in pairwise(lines):
                assert rerun.at > self.kills[run.pid], "ran again before its child was killed"

    def reruns(self) -> int:
        """How many runs were repetitions."""
        return sum(len(lines) - 1 for lines in self._journal.runs().values())

    def returns(self) -> list[float]:
        """For each repeated run, the seconds from the kill to the new beginning."""
        return [
            rerun.at - self.kills[run.pid]
            for lines in self._journal.runs().values()
            for run, rerun in pairwise(lines)
        ]

    def median_return(self) -> float:
        """How soon a dead child's jobs ran again."""
        return statistics.median(self.returns())

    def _pause(self, seconds: float, until: Callable[[], bool]) -> bool:
        end = time.monotonic() + seconds
        wait_until(lambda: until() or time.monotonic() >= end, what="the end of a pause")
        return until()

    def _kill_one(self) -> None:
        worked = {line.pid for line in self._journal.lines("begin")} - self.kills.keys()
        candidates = [child for child in workers(self._tree) if child.pid in worked]
        if not candidates:
            return
        victim = candidates[0]  # the oldest: so each has its turn
        self.kills[victim.pid] = time.monotonic()
        try:
            victim.kill()
        except psutil.NoSuchProcess:
            del self.kills[victim.pid]
