"""Breaks forkq on purpose, to show that the harness notices: Python imports this file when it
starts, if its folder is in PYTHONPATH. FORKQ_TEST_SABOTAGE says what is broken."""

from __future__ import annotations

import os
from typing import Any

from forkq.child.fetch.fetcher import Fetcher
from forkq.child.job_way import JobWay
from forkq.clock import sweep
from forkq.master.rescue import Rescue


def acknowledge_first() -> None:
    """Each job is acknowledged before it runs, as by a queue that pops."""
    opened, done = JobWay.open, Fetcher.done

    def open_ended(self: Any, run: Any, region: Any) -> Any:
        done(self._fetcher, run.unit)
        return opened(self, run, region)

    JobWay.open = open_ended  # type: ignore[method-assign]

    def end_elsewhere(self: Any, unit: Any, ending: Any = None) -> float:
        return 0.0 if ending is None else done(self, unit, ending)

    Fetcher.done = end_elsewhere  # type: ignore[method-assign]


def no_rescue() -> None:
    """No process returns the jobs of a dead one."""
    Rescue.add = lambda self, child: None  # type: ignore[method-assign]
    sweep.Sweep.run = lambda self: 1.0  # type: ignore[method-assign]


def living_are_dead() -> None:
    """A clock takes the living processes of its host for dead."""
    vars(sweep).update(liveness_of=lambda ref: "dead", _PERIOD=1.0, _RESCUE_TIME=1.0)


{
    "acknowledge first": acknowledge_first,
    "no rescue": no_rescue,
    "living are dead": living_are_dead,
}[os.environ["FORKQ_TEST_SABOTAGE"]]()
