"""statsd: what becomes of each run, to a client that the app has made.

Works with the clients of the packages ``statsd`` and ``datadog``; forkq needs neither of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from forkq import registry

from .flushing import flush_within
from .runs import ObservedRun, RunObserver, observe

# What a name may have: in statsd's lines, ":", "|" and "@" end it, and a dot begins a level.
_REFUSED: Final = re.compile(r"[^A-Za-z0-9_-]+")
# A tag may have a dot, too.
_REFUSED_IN_TAG: Final = re.compile(r"[^A-Za-z0-9_./-]+")
_LAST_FLUSH: Final = 1.0


class StatsdClient(Protocol):
    """A client of the package ``statsd``."""

    def incr(self, stat: str, /) -> object: ...

    def timing(self, stat: str, delta: float, /) -> object: ...


class DatadogClient(Protocol):
    """A client of the package ``datadog``, which knows tags."""

    def increment(self, metric: str, *, tags: Any) -> object: ...

    def timing(self, metric: str, value: float, *, tags: Any) -> object: ...

    def flush(self) -> object: ...


def report(client: StatsdClient | DatadogClient, *, prefix: str = "forkq") -> None:
    """Reports each run that has ended, from the process that runs it: a count by class and outcome,
    the run time of each that is done, and the wait of each in its queue, in milliseconds.

    A client with tags gets ``forkq.jobs`` with ``class`` and ``outcome``; another one
    ``forkq.jobs.CLASS.OUTCOME``. A second call replaces the first.
    """
    send = _to_datadog if hasattr(client, "increment") else _to_statsd
    observe(_Stats(client, prefix, send))
    _flush.client = client
    if _flush not in registry.handlers("exit"):
        registry.on("exit")(_flush)


class _Stats(RunObserver):
    def __init__(
        self, client: Any, prefix: str, send: Callable[[Any, str, Sequence[str], Any], None]
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._send = send

    def ended(self, run: ObservedRun) -> None:
        if run.outcome == "interrupted" or registry.find(run.job["class"]) is None:
            return
        self._tell("jobs", (f"class:{run.name}", f"outcome:{run.counted_as}"), None)
        if run.outcome == "done":
            self._tell("job.run", (f"class:{run.name}",), run.elapsed)
        if run.waited is not None:
            self._tell("job.wait", (f"queue:{run.queue}",), run.waited)

    def _tell(self, what: str, tags: Sequence[str], seconds: float | None) -> None:
        milliseconds = None if seconds is None else round(seconds * 1000, 3)
        self._send(self._client, f"{self._prefix}.{what}", tags, milliseconds)


def _to_statsd(
    client: StatsdClient, name: str, tags: Sequence[str], milliseconds: float | None
) -> None:
    levels = (_REFUSED.sub("_", tag.partition(":")[2]) for tag in tags)
    full = ".".join((name, *levels))
    if milliseconds is None:
        client.incr(full)
    else:
        client.timing(full, milliseconds)


def _to_datadog(
    client: DatadogClient, name: str, tags: Sequence[str], milliseconds: float | None
) -> None:
    parts = (tag.partition(":") for tag in tags)
    clean = [f"{key}:{_REFUSED_IN_TAG.sub('_', value)}" for key, _, value in parts]
    if milliseconds is None:
        client.increment(name, tags=clean)
    else:
        client.timing(name, milliseconds, tags=clean)


class _StatsdFlush:
    """The handler of ``exit``, for a client that collects before it sends."""

    client: object = None

    def __call__(self) -> None:
        flush = getattr(self.client, "flush", None)
        if flush is not None:
            flush_within(_LAST_FLUSH, [flush])


_flush: Final = _StatsdFlush()
