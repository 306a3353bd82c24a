"""What a line about a process says of it."""

from __future__ import annotations

import pytest

from forkq.screens.processes import PROCESSES, ProcessLine
from forkq.screens.table import Front
from forkq.wire.lease import Blocking
from tests.unit.api.test_queue_holds import process


@pytest.mark.parametrize("front", ["web", "top"])
def test_a_process_whose_event_loop_is_blocked_has_a_tag(front: Front) -> None:
    """Whether by a job or by a callback of none."""
    for sequence in (0, 7):
        blocked = process("mail", blocking=Blocking(sequence, "", "", "poll (feed.py:7)", 1.0))
        lines = [ProcessLine(one) for one in (process("mail"), blocked)]
        first, second = PROCESSES.table(front, lines).rows
        assert "loop blocked" not in str(first.cells["process"])
        assert "loop blocked" in str(second.cells["process"])
