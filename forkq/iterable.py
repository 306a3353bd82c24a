"""Iterable jobs as classes: ``IterableJob``."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Final

from . import registry
from .errors import Cancelled, InvalidJob, a_type
from .iteration import IterationRun
from .job import Job, is_static
from .push import parameters_of
from .registry import ASYNC, ASYNC_GENERATOR
from .wire.positions import Parameters

_ASYNC: Final = (ASYNC, ASYNC_GENERATOR)


class IterableJob(Job):
    """The base of job classes that work item by item, and go on after a stop where they were.

    A subclass defines ``build_enumerator(*args, cursor=None)``, which returns an iterable of pairs
    ``(item, cursor)``, the cursor being a JSON value from which that very item comes again; and
    ``each_iteration(item, *args)``. An item may be handed over twice, after a crash. ``None``
    instead of an iterable is nothing to do.

    ``on_start`` is called in the first run and ``on_resume`` in each later one; ``on_stop`` at the
    end of each, ``on_complete`` after the last item, ``on_cancel`` if the job was cancelled.
    ``around_iteration(item)`` may return a context manager, which is entered around each item.

    If ``each_iteration`` is ``async def``, the job runs in the event loop of the child; then the
    hooks, and ``build_enumerator``, may be asynchronous, too.
    """

    _is_iterable: ClassVar[bool] = True
    _run: IterationRun | None = None

    build_enumerator: Callable[..., Any]
    each_iteration: Callable[..., Any]
    around_iteration: Callable[[Any], AbstractContextManager[Any]] | None = None

    current_item: Any = None
    """The item that is handed over now."""
    arguments: tuple[Any, ...] = ()
    """The arguments of the job."""

    @property
    def cursor(self) -> Any:
        """Where the job would go on now; None before the first item of its first run."""
        return None if self._run is None else self._run.cursor

    def on_start(self) -> Awaitable[None] | None:
        """Called before the first item of the first run."""
        return None

    def on_resume(self) -> Awaitable[None] | None:
        """Called before the first item of each later run."""
        return None

    def on_stop(self) -> Awaitable[None] | None:
        """Called at the end of each run, however it ends."""
        return None

    def on_cancel(self) -> Awaitable[None] | None:
        """Called if the job was cancelled, before ``on_stop``."""
        return None

    def on_complete(self) -> Awaitable[None] | None:
        """Called after the last item, behind ``on_stop``."""
        return None

    def perform(self, *args: Any) -> Awaitable[None] | None:
        """Hands over one item after the other; if ``each_iteration`` is ``async def``, in the
        coroutine that it returns. Subclasses do not define it."""
        if self._is_async():
            return self._perform_async(*args)
        self.arguments, self._run = args, (run := IterationRun(self._running))
        try:
            with run.to_its_end():
                self._iterate(run)
        except Cancelled:
            self.on_cancel()
            raise
        finally:
            with run.saved_if_it_fails():
                self.on_stop()
        with run.saved_if_it_fails():
            self.on_complete()
        return None

    async def _perform_async(self, *args: Any) -> None:
        run = await asyncio.to_thread(IterationRun, self._running)
        self.arguments, self._run = args, run
        try:
            async with run.to_its_async_end():
                await self._iterate_async(run)
        except (Cancelled, asyncio.CancelledError) as error:
            ending = None if self._running is None else self._running.ending
            if isinstance(error, Cancelled) or ending == "cancelled":
                await _finished(self.on_cancel())
            raise
        finally:
            async with run.async_saved_if_it_fails():
                await _finished(self.on_stop())
        async with run.async_saved_if_it_fails():
            await _finished(self.on_complete())

    async def _iterate_async(self, run: IterationRun) -> None:
        found = await _finished(self.build_enumerator(*self.arguments, cursor=run.cursor))
        await _finished((self.on_start if run.runs == 1 else self.on_resume)())
        around = self.around_iteration or nullcontext
        run.walk(found)
        async for item, cursor in self._async_pairs(self._checked(found)):
            await run.reach(cursor)
            self.current_item = item
            with around(item):
                await self.each_iteration(item, *self.arguments)
            run.items += 1

    def _iterate(self, run: IterationRun) -> None:
        found = self.build_enumerator(*self.arguments, cursor=run.cursor)
        (self.on_start if run.runs == 1 else self.on_resume)()
        around = self.around_iteration or nullcontext
        run.walk(found)
        for item, cursor in self._pairs(self._checked(found)):
            run.at(cursor)
            self.current_item = item
            with around(item):
                self.each_iteration(item, *self.arguments)
            run.items += 1

    def _checked(self, found: Any) -> Any:
        """What ``build_enumerator`` has returned; nothing to do if that is None."""
        if found is None:
            return ()
        if isinstance(found, str | bytes) or not (
            hasattr(found, "__iter__") or (self._is_async() and hasattr(found, "__aiter__"))
        ):
            raise InvalidJob(
                f"{type(self).__qualname__}.build_enumerator returns {a_type(type(found))}: return "
                "an iterable of pairs (item, cursor), or None if there is nothing to do"
            )
        return found

    def _pairs(self, found: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """What ``build_enumerator`` has returned."""
        for pair in found:
            yield self._pair(pair)

    async def _async_pairs(self, found: Any) -> AsyncIterator[tuple[Any, Any]]:
        """What ``build_enumerator`` has returned, which may be asynchronous."""
        if not hasattr(found, "__aiter__"):
            for pair in found:
                yield self._pair(pair)
            return
        async for pair in found:
            yield self._pair(pair)

    def _pair(self, given: Any) -> tuple[Any, Any]:
        if type(given) is tuple and len(given) == 2:
            return given
        raise InvalidJob(
            f"{type(self).__qualname__}.build_enumerator gives {a_type(type(given))}, not a "
            "pair (item, cursor)"
        )

    @classmethod
    def _is_async(cls) -> bool:
        return registry.is_async(cls.each_iteration)

    @classmethod
    def _parameters(cls) -> Parameters | None:
        """The parameters of the job: those of ``build_enumerator``, without the cursor."""
        if cls.perform.__module__ != __name__:  # this also checks IterableJob itself
            raise InvalidJob(
                f"{cls.__qualname__} defines `perform`: an iterable job has `build_enumerator` and "
                "`each_iteration` in its place"
            )
        if not hasattr(cls, "build_enumerator"):
            if hasattr(cls, "each_iteration"):
                raise InvalidJob(
                    f"{cls.__qualname__} has no `build_enumerator(..., cursor=None)`, which gives "
                    "the items"
                )
            return None
        if not hasattr(cls, "each_iteration"):
            raise InvalidJob(
                f"{cls.__qualname__} has no `each_iteration(item, ...)`, which does the work"
            )
        if registry.lazy_kind(cls.build_enumerator) in _ASYNC and not cls._is_async():
            raise InvalidJob(
                f"{cls.__qualname__}.build_enumerator is asynchronous: make `each_iteration` an "
                "`async def`, too"
            )
        found = parameters_of(
            cls.build_enumerator,
            skip_self=not is_static(cls, "build_enumerator"),
            takes_cursor=True,
        )
        cls._check_each_iteration(found)
        return found

    @classmethod
    def _check_each_iteration(cls, found: Parameters) -> None:
        """Raises InvalidJob if ``each_iteration`` does not take what ``build_enumerator`` takes,
        behind the item: the first item would fail, in a child."""
        own = parameters_of(cls.each_iteration, skip_self=not is_static(cls, "each_iteration"))
        (fewest, most), (least, largest) = found.arity, own.arity
        if not least - 1 <= fewest <= most <= largest - 1:
            raise InvalidJob(
                f"{cls.__qualname__}.each_iteration takes {own}, and gets the item and all that "
                f"build_enumerator takes but the cursor: {found}"
            )


async def _finished(found: Any) -> Any:
    """What a hook of an async job has returned, or its coroutine."""
    return await found if inspect.isawaitable(found) else found
