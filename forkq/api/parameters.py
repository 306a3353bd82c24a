"""What is known of a job's parameters: from its definition in this process, else from Redis."""

from __future__ import annotations

import time
from threading import Lock
from typing import Final, TypeAlias
from weakref import WeakKeyDictionary

from .. import registry
from ..errors import WrongType
from ..servers import Server
from ..wire.parameters import ALL_SECRET, JobParameters

_FRESH: Final = 5.0  # seconds that an answer of Redis is used
_MOST: Final = 1000  # answers that are kept
_LONGEST: Final = 1000  # characters of a name; a payload may have anything there
_Answers: TypeAlias = "dict[str, tuple[float, JobParameters | None]]"

_answers: WeakKeyDictionary[Server, _Answers] = WeakKeyDictionary()
_lock = Lock()


def defined_here(name: str) -> JobParameters | None:
    """The parameters of the job of that name, if this process has imported it."""
    spec = registry.find(name)
    return None if spec is None else JobParameters(spec.parameters, spec.is_secret)


def parameters_of(server: Server, name: str) -> JobParameters | None:
    """The parameters of the job of that name; None if neither this process nor a child has defined
    it. Asks Redis every few seconds at most. Raises ServerUnavailable."""
    found = defined_here(name)
    return _published(server, name) if found is None and 0 < len(name) <= _LONGEST else found


def _published(server: Server, name: str) -> JobParameters | None:
    """The parameters of the job that the last child has published which booted on this server."""
    now = time.monotonic()
    with _lock:
        answers = _answers.setdefault(server, {})
        until, answer = answers.get(name, (0.0, None))
    if now < until:
        return answer
    answer = _ask(server, name)
    with _lock:
        if len(answers) >= _MOST:
            answers.clear()
        answers[name] = (now + _FRESH, answer)
    return answer


def _ask(server: Server, name: str) -> JobParameters | None:
    try:
        [raw] = server.ask(("HGET", server.keys.parameters, name))
    except WrongType:  # another program has written there: no argument is known to be harmless
        return ALL_SECRET
    return None if raw is None else JobParameters.decode(raw)
