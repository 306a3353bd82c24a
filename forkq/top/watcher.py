"""Asks Redis in a separate thread, so that the screen never waits for Redis."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from ..errors import ForkqError
from ..screens.problems import Problem
from .content import Content, Look, Page

_EVERY: Final = 1.0  # seconds between two looks
_SHARE: Final = 0.1  # of the time may go into asking
_LONGEST: Final = 10.0  # seconds between two looks
_SLOW: Final = 3.0  # seconds without a reply, after which the screen says so


class Seen(msgspec.Struct, frozen=True):
    """The content of a page as of now, what is wrong, and what is known if nothing is."""

    page: Page
    content: Content
    problems: Sequence[Problem]
    well: str


class PageFailed(msgspec.Struct, frozen=True):
    """A page that could not be asked for, although Redis answers: such as a key that holds another
    type, or a job that has left."""

    page: Page
    says: str


class Away(msgspec.Struct, frozen=True):
    """Redis does not answer. ``since``: epoch seconds of its last answer, or of the start."""

    since: float
    says: str


class Watcher:
    """A daemon thread for one shard, or for the only Redis (""): the program may end while it waits
    for it. ``overview`` and ``show`` are called in it: what is wrong, and what is known
    if nothing is."""

    def __init__(
        self,
        overview: Callable[[], tuple[Sequence[Problem], str]],
        show: Callable[[Seen | PageFailed | Exception], None],
    ) -> None:
        self._overview = overview
        self._show = show
        self._wake = threading.Event()
        self._look: tuple[Page, Look] | None = None
        self._ended = False
        self._error = ""
        self._asked_at: float | None = None
        self._answered_at = time.time()
        self._thread = threading.Thread(target=self._run, name="forkq top", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ends the thread, without waiting for Redis."""
        self._ended = True
        self._wake.set()

    def join(self, patience: float) -> None:
        self._thread.join(patience)

    def look(self, page: Page, look: Look) -> None:
        """Makes the watcher show this from now on."""
        self._look = page, look
        self._wake.set()

    def pause(self) -> None:
        """Makes the watcher show nothing until the next ``look``."""
        self._look = None

    @property
    def away(self) -> Away | None:
        """That Redis does not answer, and since when; None while it answers."""
        begun = self._asked_at
        if self._error:
            return Away(self._answered_at, self._error)
        if begun is not None and time.monotonic() - begun > _SLOW:
            return Away(self._answered_at, "it does not answer")
        return None

    def _run(self) -> None:
        pause = 0.0
        while not self._ended:
            self._wake.wait(pause)
            self._wake.clear()
            wanted = self._look
            if wanted is None or self._ended:
                pause = _LONGEST
                continue
            begin = self._asked_at = time.monotonic()
            try:
                self._ask(*wanted)
            except Exception as error:  # noqa: BLE001 - the app shows its traceback, and ends
                self._show(error)
                return
            self._asked_at = None
            pause = min(_LONGEST, max(_EVERY, (time.monotonic() - begin) / _SHARE))

    def _ask(self, page: Page, look: Look) -> None:
        try:
            worst, well = self._overview()
        except ForkqError as error:
            self._error = str(error)
            return
        self._error, self._answered_at = "", time.time()
        try:
            content = page.content(look)
        except ForkqError as error:
            self._show(PageFailed(page, str(error)))
            return
        self._show(Seen(page, content, worst, well))
