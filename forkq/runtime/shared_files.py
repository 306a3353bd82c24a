"""Files without a name, which the master shares with one child. The master makes them before the
fork, so they outlive the child; their descriptors outlive an exec of the master.

In one the child's faulthandler leaves the stack of a crash, for the master to read. What is in the
other, deadlines.py writes and reads.
"""

from __future__ import annotations

import faulthandler
import os
import re
import tempfile
import time
from typing import Final, NamedTuple

from . import deadlines
from .deadlines import Overdue

_LONGEST: Final = 65_536  # bytes that are read
_LONGEST_STACK: Final = 2000  # characters
_CRASHED_THREAD: Final = "Current thread"
_THREAD_ID: Final = re.compile(r"Current thread 0x([0-9a-f]{1,16}) ")


def make(purpose: str) -> int:
    """The descriptor of a new file without a name. ``purpose`` is the name that the system shows,
    if it shows one. Raises OSError."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(f"forkq-{purpose}")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def enable_crash_file(descriptor: int) -> None:
    """Has SIGSEGV, SIGFPE, SIGABRT, SIGBUS and SIGILL leave the stacks of this child in the file of
    ``descriptor``."""
    faulthandler.enable(file=descriptor, all_threads=True)


def stack_in(descriptor: int) -> str:
    """The stack of the thread that crashed, innermost call first; "" if there is none."""
    _, _, rest = _text(descriptor).partition(_CRASHED_THREAD)
    lines = rest.partition("\n\n")[0].splitlines()[1:]
    return "\n".join(line.strip() for line in lines)[:_LONGEST_STACK]


def thread_in(descriptor: int) -> int | None:
    """The thread that crashed, as ``threading.get_ident`` names it; None if none did."""
    found = _THREAD_ID.search(_text(descriptor))
    return None if found is None else int(found[1], 16)


def _text(descriptor: int) -> str:
    return os.pread(descriptor, _LONGEST, 0).decode("utf-8", "replace")


class SharedFiles(NamedTuple):
    """The files without a name that the master shares with one child: ``crash``, where faulthandler
    writes, and ``deadlines``, where the child notes those of its jobs, and which have begun."""

    crash: int
    deadlines: int

    @classmethod
    def make(cls) -> SharedFiles:
        """Makes both, or none. Raises OSError."""
        crash = make("crash")
        try:
            return cls(crash, make("deadlines"))
        except OSError:
            os.close(crash)
            raise

    @property
    def stack(self) -> str:
        """What faulthandler has written of the thread that crashed; "" if nothing."""
        return stack_in(self.crash)

    @property
    def crashed_job(self) -> int | None:
        """The sequence number of the lease whose job ran in the thread that crashed; None if none
        did, or if it is unknown."""
        thread = thread_in(self.crash)
        return None if thread is None else deadlines.begun_in(self.deadlines, thread)

    @property
    def last_begun(self) -> int | None:
        """The highest sequence number of a lease whose job the child has begun; None if it does not
        tell."""
        return deadlines.last_begun(self.deadlines)

    @property
    def units_in_progress(self) -> frozenset[int] | None:
        """The sequence numbers of the leases whose jobs are in progress, in a child whose event
        loop takes units; None in another child."""
        return deadlines.units_in_progress(self.deadlines)

    @property
    def units_at_work(self) -> frozenset[int]:
        """The sequence numbers of those for which a thread of such a child does something at this
        moment: the one whose step its loop does, and those of other threads."""
        return deadlines.units_at_work(self.deadlines)

    @property
    def next_deadline(self) -> float | None:
        """When the next job of the child is beyond its hard time limit (monotonic)."""
        return deadlines.next_deadline(self.deadlines)

    def overdue(self, now: float) -> list[Overdue]:
        """The jobs of the child that go on beyond their hard time limits."""
        return deadlines.overdue(self.deadlines, now)

    def run_times(self, *, suspects: bool = False) -> dict[int, float]:
        """For how many seconds the jobs of its leases, by sequence number, have run that the child
        has begun last. ``suspects``: those of the suspects that an ordinary child runs, instead of
        its own."""
        return deadlines.run_times(self.deadlines, time.monotonic(), suspects=suspects)

    def steps(self, *, suspects: bool = False) -> dict[int, str]:
        """The durable steps that its jobs do now, by the sequence numbers of their leases.
        ``suspects``: as for ``run_times``."""
        return deadlines.steps_in(self.deadlines, suspects=suspects)
