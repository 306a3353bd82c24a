"""Handles of children without processes, and what such a child tells."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from forkq.master.child_handle import ChildHandle
from forkq.master.slot import Slot
from forkq.runtime.pipe import Fact, Order, PipeReader, Ready, facts, orders
from forkq.runtime.shared_files import SharedFiles


def make(slot: Slot, pid: int, identity: str) -> tuple[ChildHandle, PipeReader[Order]]:
    """A child in its boot, and its end of the control pipe."""
    child_control, control = os.pipe()
    report, child_report = os.pipe()
    os.close(child_report)
    os.set_blocking(control, False)
    reader, files = PipeReader[Fact](report, facts), SharedFiles.make()
    child = ChildHandle(slot, pid, None, control, reader, files, identity)
    return child, PipeReader(child_control, orders)


def get_ready(child: ChildHandle) -> None:
    """It has booted."""
    child.told.note(Ready(child.identity))


def tell(child: ChildHandle, **changes: Any) -> None:
    """It sends a Beat with these changes."""
    child.told.note(msgspec.structs.replace(child.beat, **changes))
