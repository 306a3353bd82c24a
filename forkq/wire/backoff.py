"""``backoff``: how long a failed job waits before each retry, as the payload says it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias

# What an option can be. The payload has seconds.
Backoff: TypeAlias = Literal["exponential"] | float | timedelta | Sequence[float | timedelta]
EXPONENTIAL: Final = "exponential"
SPREAD: Final = 1.1  # times the delay, at most, of an exponential one
# In seconds: services that were overloaded are back within minutes, and a retry an hour costs one
# that is away for a day next to nothing.
_FIRST: Final = 10.0
_LONGEST: Final = 3600.0
_DOUBLINGS: Final = 9  # beyond the longest
_MOST_SECONDS: Final = 1e9  # a larger number is a time stamp by mistake


def is_backoff(value: object) -> bool:
    """Whether an option or a payload can have it."""
    if isinstance(value, list | tuple):
        return bool(value) and all(map(_is_delay, value))
    return value == EXPONENTIAL or _is_delay(value)


def stored_backoff(value: Any) -> Any:
    """A valid option as the payload has it."""
    return (
        [_seconds(each) for each in value] if isinstance(value, tuple | list) else _seconds(value)
    )


def delay_of(backoff: Any, tries: int) -> float:
    """Seconds before the retry that follows failure number ``tries``, from 0 on, by a ``backoff``
    that ``is_backoff``. Exact, but that an exponential one is to be spread (``SPREAD``)."""
    if backoff == EXPONENTIAL:
        return float(min(_FIRST * 2 ** min(tries, _DOUBLINGS), _LONGEST))
    delays = backoff if isinstance(backoff, list | tuple) else [backoff]
    return float(delays[min(tries, len(delays) - 1)])


def _is_delay(value: object) -> bool:
    found = _seconds(value)
    return type(found) in (int, float) and 0 < found <= _MOST_SECONDS


def _seconds(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else value
