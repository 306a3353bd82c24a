"""``[expire]``: after how long the jobs of a queue are not run any more, unless they say so
themselves."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from ..errors import ConfigError, ForkqError
from ..units import parse_duration
from ..wire.times import LONGEST_SECONDS
from .capsule import check_queue
from .schema import Each, Key


def _seconds(after: float | str) -> float:
    try:
        seconds = parse_duration(after) if isinstance(after, str) else float(after)
    except ForkqError as error:
        raise ConfigError(str(error)) from None
    if not 0 < seconds <= LONGEST_SECONDS:
        without = "; a queue without an expiry is left out, and `expires_in=0` in a job or a push "
        raise ConfigError(
            f"expected more than 0 and up to 1e9 seconds, found {after!r}"
            + (f"{without}excepts that job" if seconds == 0 else "")
        )
    return seconds


TABLE: Final = Each(
    Annotated[
        int | float | str,
        Meta(description='a number of seconds, or a duration such as "90s" or "2h"'),
        _seconds,
        Key(
            "After how long a job that is pushed to the queue is not run any more, unless it has "
            "`expires_in` itself ([expiry](expiry.md#for-a-whole-queue)).",
            default="none",
        ),
    ],
    check_queue,
)
