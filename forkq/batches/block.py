"""What is pushed in the block of a batch gets its place there. Pushes of a process without a block
pass nothing of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from .. import middleware
from ..features.batch.parts import BATCH
from ..wire.marks import KEY, with_needs
from ..wire.payload import DEFAULT_QUEUE, Payload

if TYPE_CHECKING:
    from .batch import Batch

_NEVER: Final = object()


class _Joins:
    """The blocks that are open in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0

    def after_fork(self) -> None:
        """Another thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    def begin(self) -> None:
        """A block begins. A new list: another thread may be walking through the old one."""
        with self._lock:
            self._blocks += 1
            if _join not in middleware.pushes.members:
                middleware.pushes.members = [*middleware.pushes.members, _join]

    def end(self) -> None:
        """A block has ended."""
        with self._lock:
            self._blocks -= 1
            if not self._blocks:
                left = [each for each in middleware.pushes.members if each is not _join]
                middleware.pushes.members = left


block: Final[ContextVar[Batch | None]] = ContextVar("forkq_batch", default=None)
joins: Final = _Joins()
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=joins.after_fork)


def _join(job: Payload, call: Callable[[], Any]) -> Any:
    """Around each push while a block is open somewhere in this process."""
    batch = block.get()
    if batch is None or type(job) is not dict:
        return call()
    with _marked(job, batch):
        return call()


@contextmanager
def _marked(job: Payload, batch: Batch) -> Iterator[None]:
    """Puts the batch into the needs of ``job``, which is the caller's, for the time of a push."""
    before = job.get(KEY, _NEVER)
    need = batch.needs_of_member(job.get("queue", DEFAULT_QUEUE))
    job[KEY] = with_needs(before, {BATCH: need})
    try:
        yield
    finally:
        if before is _NEVER:
            del job[KEY]
        else:
            job[KEY] = before
