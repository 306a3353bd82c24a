"""Which running jobs a person should look at."""

from __future__ import annotations

import pytest

from forkq import api
from forkq.screens.running import RunLine


def run(elapsed: float, thread: str, usual: float) -> RunLine:
    job = api.RunningJob("j", "Mail", "mail", "web-1:1:a", thread, 0.0, elapsed)
    return RunLine(job, usual=usual)


@pytest.mark.parametrize(
    ("elapsed", "thread", "late"),
    [
        (1.5, "t1", False),  # half a second, begun at the end of the second that the record names
        (5.9, "", False),  # the age of the heartbeat: when it began is not known
        (2.5, "t1", True),
    ],
)
def test_only_a_job_that_surely_runs_for_long_is_late(
    elapsed: float, thread: str, late: bool
) -> None:
    line = run(elapsed, thread, usual=0.475)
    assert (line.is_late, line.exceeds(0.95)) == (late, late)
    assert not run(elapsed, thread, usual=0.0).is_late
