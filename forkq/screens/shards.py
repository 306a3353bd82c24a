"""What is wrong on the shard that a person looks at and on all others, for which no page waits, and
the parts of a queue that is spread over several."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Final

from .. import api
from ..errors import ForkqError, ServerUnavailable
from ..units import format_count, plural
from ..values import replace
from .facts import Observer
from .problems import MOST, Problem, problems, well, worst_first
from .texts import name as shown

_SOON: Final = 0.2  # seconds that a page gives a shard which it asks
_SLOW: Final = 2.0  # seconds after which a shard does not answer
_MOST: Final = 2  # problems of each other shard


class Shards:
    """``observers``: one for each shard, by its name."""

    def __init__(self, observers: Mapping[str, Observer]) -> None:
        self._observers = observers
        self._lock = threading.Lock()
        self._asking: dict[str, tuple[threading.Thread, float]] = {}
        self._known: dict[str, list[Problem]] = {}

    def problems(self, shard: str, names: Iterable[str], most: int = MOST) -> list[Problem]:
        """The worst of ``shard``, and what is urgent on the others of ``names``; the urgent ones
        first. Raises ServerUnavailable if ``shard`` does not answer."""
        worst = problems(self._observers[shard].facts(), most)
        return worst_first([*worst, *self.elsewhere(shard, names)])

    def well(self, shard: str) -> str:
        """The sentence about ``shard`` if nothing is wrong there. Raises ServerUnavailable."""
        return well(self._observers[shard].facts())

    def elsewhere(self, shard: str, names: Iterable[str]) -> list[Problem]:
        """The urgent problems of the shards in ``names``, other than ``shard``, that have answered
        by now."""
        others = [name for name in names if name != shard]
        with self._lock:
            begun = [self._begin(name) for name in others if not self._is_asked(name)]
        end = time.monotonic() + _SOON
        for thread in begun:
            thread.join(max(0.0, end - time.monotonic()))
        return [problem for name in others for problem in self._of(name)]

    def _is_asked(self, name: str) -> bool:
        return name in self._asking and self._asking[name][0].is_alive()

    def _begin(self, name: str) -> threading.Thread:
        """Starts a daemon thread that asks one shard: the program may end while that shard
        hangs."""
        thread = threading.Thread(target=self._ask, args=(name,), name="forkq shard", daemon=True)
        self._asking[name] = thread, time.monotonic()
        thread.start()
        return thread

    def _ask(self, name: str) -> None:
        try:
            found = problems(self._observers[name].facts(), _MOST)
            self._known[name] = [_on_shard(name, one) for one in found if one.urgent]
        except ForkqError as error:
            self._known[name] = [_away(name, str(error))]

    def _of(self, name: str) -> list[Problem]:
        since = self._asking[name][1]
        if self._is_asked(name) and time.monotonic() - since > _SLOW:
            return [_away(name, "it does not answer: look at the host of its Redis")]
        return self._known.get(name, [])


def _on_shard(name: str, problem: Problem) -> Problem:
    key = f"{name} {problem.key}"
    return replace(problem, says=f"shard {name}: {problem.says}", shard=name, key=key)


def _away(name: str, why: str) -> Problem:
    return Problem(f"shard {name} is down: {why}", shard=name, key=f"{name} down")


def sizes(name: str, servers: Iterable[api.Server]) -> dict[str, int | None]:
    """How many jobs each part of a queue has, by the name of the shard; None where that is down."""
    found: dict[str, int | None] = {}
    for server in servers:
        try:
            found[server.name] = api.Queue(name, server).size
        except ServerUnavailable:
            found[server.name] = None
    return found


def sizes_in_words(name: str, parts: Mapping[str, int | None]) -> str:
    """The size of a queue and of each of its parts, as a sentence."""
    each = ", ".join(f"{part} {size_of_part(size)}" for part, size in parts.items())
    return f"{shown(name)}: {plural(_known(parts), 'job')} in {len(parts)} parts: {each}"


def size_of_part(size: int | None) -> str:
    """The size of one part; None is that its shard has not answered."""
    return "does not answer" if size is None else format_count(size)


def whole_in_words(parts: Mapping[str, int | None]) -> str:
    """The size of a queue beside that of one of its parts; "" for a queue that is not spread."""
    if not parts:
        return ""
    away = [part for part, size in parts.items() if size is None]
    without = f" without {' and '.join(away)}" if away else ""
    return f"of {format_count(_known(parts))} in {len(parts)} parts{without}"


def _known(parts: Mapping[str, int | None]) -> int:
    return sum(size or 0 for size in parts.values())
