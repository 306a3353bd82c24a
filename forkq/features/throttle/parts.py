"""What the push of a job with ``throttle`` needs: values, without I/O.

The option is for the push alone: the payload says nothing of it. The script that pushes the job
notes when it did (``store/scripts/throttle.lua``), for each digest of class and arguments, and
pushes none beyond the rate.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from ...limits.rate_text import parse_rate
from ...wire.options import OPTIONS
from ...wire.payload import Payload
from ..effects import name_of
from ..unique.parts import UNIQUE_OPTIONS, Definition, Digest, check

THROTTLE: Final = "throttle"
# In the place of the option, where jobs are pushed by a process that does not know their
# definition: the rate, and the digest.
_RATE: Final = "rate"
_WINDOW: Final = "window"


class Throttle(NamedTuple):
    """How many jobs with the same arguments are pushed in any so many ``milliseconds``."""

    most: int
    milliseconds: int


class Throttled(NamedTuple):
    """What the option asks. ``digest`` makes the digest of the arguments; None if it is known:
    ``window`` then."""

    throttle: Throttle
    window: str = ""
    digest: Digest | None = None


def ask(job: Payload, needs: dict[str, Any], definition: Definition | None) -> Throttled | None:
    """Takes the option out of the ``needs`` of a job; None if it has none. It leaves those that
    unique jobs have, too. Raises InvalidJob."""
    given = needs.pop(THROTTLE, None)
    if given is None:
        return None
    if type(given) is dict and type(given.get(_WINDOW)) is str:
        return Throttled(_throttle(job, given.get(_RATE)), given[_WINDOW])
    beside = {name: needs[name] for name in UNIQUE_OPTIONS if name in needs}
    check(job["class"], {**beside, THROTTLE: given})
    throttle = _throttle(job, given)
    names, by = (job["class"], name_of(job)), needs.get("unique_by")
    return Throttled(throttle, digest=Digest(names, by, definition, THROTTLE))


def known(given: object, asked: Throttled, args: list[Any]) -> object:
    """What stands in the place of the option, ``given``, for jobs with these arguments."""
    return given if asked.digest is None else {_RATE: given, _WINDOW: asked.digest.of(args)}


def _throttle(job: Payload, given: object) -> Throttle:
    row = OPTIONS[THROTTLE]
    if type(given) is not str or not row.values.fits(given):
        raise row.refusal(job["class"], THROTTLE, given)
    rate = parse_rate(given)
    return Throttle(round(rate.count), round(1000 * rate.seconds))
