"""How far an iterable job has come: work in many small steps, which may stop between two of them.

The job says after each step where it would go on: its cursor. forkq saves that every five seconds,
and when the job stops or fails. The way of such a job is in docs/internals.md.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, closing, contextmanager, suppress
from math import inf
from time import monotonic
from typing import Any, Final, Protocol

from .current_job import CurrentJob, Place, note_items, reported_place
from .errors import Cancelled, InvalidJob, IterationStopped
from .features.iterable.parts import Iteration, written
from .process_state import stopping

# Seconds of work that a job may repeat after its process was killed.
_SAVE_EVERY: Final = 5.0
_CURSOR: Final = "cursor"
_BARE: Final = (
    "an iterable job gives None as its cursor after its first item, so it would begin again: yield "
    "what the next run is to go on with"
)


class CursorStore(Protocol):
    """Where the cursor of a job is kept while it runs. ``save`` returns whether another process has
    cancelled the job. Both may raise IterationStopped."""

    def load(self) -> Iteration: ...
    def save(self, reached: Iteration) -> bool: ...


class _NoStore:
    """The store of a job that no child runs: it begins at the beginning."""

    def load(self) -> Iteration:
        return Iteration()

    def save(self, reached: Iteration) -> bool:
        written(reached.cursor)
        return False


class WorkSource:
    """What a job works through. ``total``: what its cursor is after the last item; ``count``: how
    many items there are from the beginning on. None if that is not known."""

    total: int | None = None
    count: int | None = None

    def place(self, items: int, cursor: Any) -> Place:
        """How much of the work is done with ``items``, at ``cursor``, and of how much."""
        if self.total is not None and type(cursor) in (int, float):
            return cursor, self.total
        return items, self.count


class IterationRun:
    """One run of an iterable job: how far the job has come, and whether it goes on. ``items``: how
    many its runs have done."""

    def __init__(self, running: CurrentJob | None) -> None:
        self._store: CursorStore = getattr(running, "cursors", None) or _NoStore()
        before = self._store.load()
        self._running = running
        self.runs = before.runs + 1
        self.cursor = before.cursor
        self.items = before.items
        self._source = WorkSource()
        self._has_checked = False
        self._is_cancelled = before.cancelled
        self._before = before.seconds
        self._begun = self._noted_at = monotonic()
        self._save_at = self._begun + _SAVE_EVERY
        self._stop_at = self._begun + _longest(running)

    @contextmanager
    def to_its_end(self) -> Iterator[None]:
        """Around the work of the job. Raises Cancelled at once if another process has cancelled it,
        and saves how far it has come if it fails."""
        if self._is_cancelled:
            raise Cancelled
        with self.saved_if_it_fails():
            yield

    @contextmanager
    def saved_if_it_fails(self) -> Iterator[None]:
        """Around code of the app: its work, and the hooks behind that."""
        try:
            yield
        except (IterationStopped, Cancelled):
            raise
        except BaseException:
            with suppress(InvalidJob):  # a cursor that cannot be saved must not hide the error
                self.save()
            raise

    @asynccontextmanager
    async def to_its_async_end(self) -> AsyncIterator[None]:
        """``to_its_end`` for a coroutine."""
        if self._is_cancelled:
            raise Cancelled
        async with self.async_saved_if_it_fails():
            yield

    @asynccontextmanager
    async def async_saved_if_it_fails(self) -> AsyncIterator[None]:
        """``saved_if_it_fails`` for a coroutine."""
        try:
            yield
        except (IterationStopped, Cancelled):
            raise
        except BaseException:
            with suppress(InvalidJob):
                await asyncio.to_thread(self.save)
            raise

    def walk(self, source: object) -> None:
        """Notes what the job works through, which may know its end."""
        self._source = source if isinstance(source, WorkSource) else WorkSource()

    def at(self, cursor: Any) -> None:
        """Notes that everything before ``cursor`` is done. Raises IterationStopped if the job is to
        go on later, and Cancelled."""
        if self._note(cursor):
            self.save()
        self._stop_if_told()

    async def reach(self, cursor: Any) -> None:
        """``at`` for a coroutine: a thread saves, since the loop must not wait for Redis."""
        if self._note(cursor):
            await asyncio.to_thread(self.save)
        self._stop_if_told()

    def save(self) -> None:
        """Saves how far the job has come. Raises Cancelled if another process has cancelled it."""
        if self._store.save(self._reached()):
            raise Cancelled

    def _note(self, cursor: Any) -> bool:
        """Notes the cursor. Returns whether it is to be saved now. Raises InvalidJob for none."""
        if cursor is None and self.items:
            raise InvalidJob(_BARE)
        if not self._has_checked:  # not only at the first save, which a short run never comes to
            written(cursor)
            self._has_checked = True
        self.cursor, self._noted_at = cursor, monotonic()
        self._report()
        is_due = self._noted_at >= self._save_at
        if is_due:
            self._save_at = self._noted_at + _SAVE_EVERY
        return is_due

    def _report(self) -> None:
        """Tells of the progress, for the next heartbeat."""
        if self._running is not None:
            place = self._source.place(self.items, self.cursor)
            note_items(self._running, self.items, self._before, place)

    def _stop_if_told(self) -> None:
        is_over = self._noted_at >= self._stop_at
        if (is_told := stopping()) or is_over:
            written(self.cursor)  # raises here what the job has given, and not where it is settled
            raise IterationStopped(self._reached(), at_tail=not is_told)

    def _reached(self) -> Iteration:
        seconds = self._before + monotonic() - self._begun
        place = None if self._running is None else reported_place(self._running)
        return Iteration(self.runs, self.cursor, seconds, items=self.items, place=place)


def _longest(running: CurrentJob | None) -> float:
    """Seconds for which a run may go on."""
    found = None if running is None else running.payload.get("max_runtime")
    return found if isinstance(found, int | float) and found > 0 else inf


def run_generator(running: CurrentJob | None, function: Callable[..., Any], *args: Any) -> None:
    """Runs a generator function that is a job: it yields its cursor after each step."""
    run = IterationRun(running)
    named = {} if run.cursor is None else {_CURSOR: run.cursor}
    with run.to_its_end(), closing(function(*args, **named)) as steps:
        for cursor in steps:
            run.items += 1
            run.at(cursor)


async def run_async_generator(
    running: CurrentJob | None, function: Callable[..., Any], *args: Any
) -> None:
    """Runs an asynchronous generator function that is a job."""
    run = await asyncio.to_thread(IterationRun, running)
    named = {} if run.cursor is None else {_CURSOR: run.cursor}
    async with run.to_its_async_end(), aclosing(function(*args, **named)) as steps:
        async for cursor in steps:
            run.items += 1
            await run.reach(cursor)


def without_cursor(signature: inspect.Signature, name: str) -> inspect.Signature:
    """The parameters of a job, of those of the function ``name`` that takes a cursor, too. Raises
    InvalidJob."""
    found = list(signature.parameters.values())
    cursor = next((one for one in found if one.name == _CURSOR), None)
    if cursor is None or cursor.default is inspect.Parameter.empty:
        raise InvalidJob(f"{name} needs a parameter `cursor=None`: from there the job goes on")
    if cursor.kind is cursor.POSITIONAL_OR_KEYWORD and found[-1] is not cursor:
        raise InvalidJob(f"{name}: put `cursor=None` behind all other parameters")
    return signature.replace(parameters=[one for one in found if one is not cursor])
