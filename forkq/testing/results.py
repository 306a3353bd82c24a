"""The results of jobs in a test without Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..features.results.parts import effects, has_ended
from ..features.ways import BY_NAME
from ..store.route import EncodedJob
from ..wire.keys import Keys
from ..wire.marks import KEY, needs_in
from ..wire.payload import Payload

if TYPE_CHECKING:
    from ..store.watch.key_watch import Waiter

_KEYS: Final = Keys()
_NOT_RUN: Final = (
    "the job whose result is asked for has not run yet, and this test records pushes: "
    "call `forkq.testing.drain()` before, or use `forkq.testing.inline()`"
)


class RecordedResults:
    """What the scripts keep in Redis of the jobs that have a result."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def await_job(self, job: EncodedJob) -> None:
        """Notes that a job with a result was pushed."""
        if job.needs is not None and job.needs.result_ttl:
            self._texts[_KEYS.result(job.jid)] = job.needs.placeholder(job.queue)[0]

    def await_key(self, key: str, text: str) -> None:
        """Notes the placeholder of a job that a script will push."""
        self._texts.setdefault(_own(key), text)

    def end(self, marked: Payload | None, way: str) -> None:
        """Does with the result of a job what the table says of this way."""
        if marked is not None:
            needs, fate = needs_in(marked.get(KEY)), BY_NAME[way].result
            for effect in effects(_KEYS, needs, fate, marked, way, 0.0):
                self._texts[effect.key] = str(effect.arguments[0])

    def tell(self, waiter: Waiter) -> None:
        """Tells the waiter how its job has ended. Raises AssertionError if it has not: no other
        process runs it."""
        if _KEYS.result("") not in waiter.key:  # a step of a flow that has not ended
            raise AssertionError(_NOT_RUN)
        text = self._texts.get(_own(waiter.key))
        found = None if text is None else text.encode()
        if found is not None and not has_ended(found):
            raise AssertionError(_NOT_RUN)
        waiter.tell(found)

    def forget(self, waiter: Waiter) -> None:
        """Does nothing: a waiter is told at once."""

    def clear(self) -> None:
        """Forgets all results."""
        self._texts.clear()


def _own(key: str) -> str:
    """The key of a result without the prefix."""
    return key[key.rindex(_KEYS.result("")) :]
