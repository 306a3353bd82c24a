"""Iterable jobs as classes: ``IterableJob``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from .errors import Cancelled, InvalidJob
from .iteration import IterationRun
from .job import Job, is_static, parameters_of
from .push import Parameters


class IterableJob(Job):
    """The base of job classes that work item by item, and go on after a stop where they were.

    A subclass defines ``build_enumerator(*args, cursor=None)``, which returns an iterable of pairs
    ``(item, cursor)``, the cursor being a JSON value from which that very item comes again; and
    ``each_iteration(item, *args)``. An item may be handed over twice, after a crash. ``None``
    instead of an iterable is nothing to do.

    ``on_start`` is called in the first run and ``on_resume`` in each later one; ``on_stop`` at the
    end of each, ``on_complete`` after the last item, ``on_cancel`` if the job was cancelled.
    ``around_iteration(item)`` may return a context manager, which is entered around each item.
    """

    _is_iterable: ClassVar[bool] = True
    _run: IterationRun | None = None

    build_enumerator: Callable[..., Iterable[tuple[Any, Any]] | None]
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

    def on_start(self) -> None:
        """Called before the first item of the first run."""

    def on_resume(self) -> None:
        """Called before the first item of each later run."""

    def on_stop(self) -> None:
        """Called at the end of each run, however it ends."""

    def on_cancel(self) -> None:
        """Called if the job was cancelled, before ``on_stop``."""

    def on_complete(self) -> None:
        """Called after the last item, behind ``on_stop``."""

    def perform(self, *args: Any) -> None:
        """Hands over one item after the other. Subclasses do not define it."""
        self.arguments, self._run = args, IterationRun(self._running)
        try:
            with self._run.to_its_end():
                self._iterate(self._run)
        except Cancelled:
            self.on_cancel()
            raise
        finally:
            self.on_stop()
        self.on_complete()

    def _iterate(self, run: IterationRun) -> None:
        found = self.build_enumerator(*self.arguments, cursor=run.cursor)
        (self.on_start if run.runs == 1 else self.on_resume)()
        around, total = self.around_iteration or nullcontext, getattr(found, "total", None)
        for item, cursor in self._pairs(found or ()):
            run.at(cursor)
            if total is not None:
                self.progress(cursor, total)
            self.current_item = item
            with around(item):
                self.each_iteration(item, *self.arguments)

    def _pairs(self, found: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """What ``build_enumerator`` has returned. Raises InvalidJob for what is no pair."""
        for pair in found:
            if type(pair) is not tuple or len(pair) != 2:
                raise InvalidJob(
                    f"{type(self).__qualname__}.build_enumerator gives a {type(pair).__name__}, "
                    "not a pair (item, cursor)"
                )
            yield pair

    @classmethod
    def _parameters(cls) -> Parameters | None:
        """The parameters of the job: those of ``build_enumerator``, without the cursor."""
        if not hasattr(cls, "build_enumerator"):
            return None
        if cls.perform is not IterableJob.perform:
            raise InvalidJob(
                f"{cls.__qualname__} defines `perform`: an iterable job has `each_iteration`"
            )
        if not hasattr(cls, "each_iteration"):
            raise InvalidJob(
                f"{cls.__qualname__} has no `each_iteration(item, ...)`, which does the work"
            )
        parameters_of(cls.each_iteration, skip_self=not is_static(cls, "each_iteration"))
        return parameters_of(
            cls.build_enumerator,
            skip_self=not is_static(cls, "build_enumerator"),
            takes_cursor=True,
        )
