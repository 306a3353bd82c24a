"""What a job with ``expires_in`` needs: values, without I/O.

The option is in seconds from the push, or from the time for which the job is scheduled. The payload
has the moment in Redis's time: ``forkq.needs.expires_at``, and ``expiry`` at its top, where Sidekiq
Pro has it. A process that pushes a job for now does not know Redis's time. So the payload gets a
placeholder there, and push.lua puts the moment in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ...wire.marks import KEY, NEEDS, needs_in
from ...wire.options import OPTIONS
from ...wire.payload import Payload

# The option, as a definition has it.
EXPIRES_IN: Final = "expires_in"
EXPIRES_AT: Final = "expires_at"
EXPIRY: Final = "expiry"  # Sidekiq Pro's

_LATEST: Final = 1e11  # the year 5138: what is later is no number of seconds

# The placeholder: a byte that no JSON text has, since a string escapes it.
MOMENT: Final = b"\x01"
_PLACEHOLDER: Final = msgspec.Raw(MOMENT)


def promise(name: str, top: Payload, needs: dict[str, Any], at: float | None) -> float:
    """Writes into ``top``, keys at the top of a payload, and into its ``needs`` when a job of this
    ``name`` expires, if it has the option. ``at``: when it is due (epoch seconds; None: it goes to
    its queue now). Returns the seconds that push.lua adds
    to Redis's time; 0 if the payload has no placeholder. Raises InvalidJob for another value than
    the option can have: a raw push may have written it there."""
    after: float | None = needs.pop(EXPIRES_IN, None)
    if not after:
        return 0.0
    if not (row := OPTIONS[EXPIRES_IN]).values.fits(after):
        raise row.refusal(name, EXPIRES_IN, after)
    moment = _PLACEHOLDER if at is None else at + after
    needs[EXPIRES_AT] = top[EXPIRY] = moment
    return after if at is None else 0.0


def promised_at(needs: Mapping[str, Any]) -> float | None:
    """The moment after which the job is not run any more, in epoch seconds; None if there is none,
    or no number."""
    moment = needs.get(EXPIRES_AT)
    is_number = type(moment) is int or type(moment) is float
    return float(moment) if is_number and 0 < moment < _LATEST else None  # type: ignore[operator, arg-type]


def is_over(needs: Mapping[str, Any], at: float) -> bool:
    """Whether the job is worth nothing any more at ``at``, epoch seconds."""
    moment = promised_at(needs)
    return moment is not None and moment <= at


def forget(job: Payload) -> Payload:
    """``job`` without its expiry: a person wants it to run after all."""
    if EXPIRES_AT not in (needs := needs_in(job.get(KEY))):
        return job
    left = {key: value for key, value in needs.items() if key != EXPIRES_AT}
    marks = {key: value for key, value in job[KEY].items() if key not in (NEEDS, "v")}
    if left:
        marks |= {key: value for key, value in job[KEY].items() if key == "v"} | {NEEDS: left}
    kept = {key: value for key, value in job.items() if key not in (KEY, EXPIRY)}
    return {**kept, KEY: marks} if marks else kept
