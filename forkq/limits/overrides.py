"""The rules of a queue that were changed at run time, as fields in Redis (``Keys.control``).

``forkq.Queue`` and the commands write them. fetch.lua and ``in_force`` read them in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from ..errors import InvalidRule
from ..values import replace
from .rate_text import parse_rate, read_stored, stored_rate
from .rules import HIGHEST_LIMIT, Rate, Rules

Fields = Mapping[str, str]

# Instead of a value: no such rule, even if the configuration has one.
LIFTED: Final = "none"
# Instead of a value: the rule of the configuration.
FORGOTTEN: Final = ""

FORGET_ALL: Final[Fields] = dict.fromkeys(("limit", "process_limit", "rate", "burst"), FORGOTTEN)

_WHOLE: Final = re.compile(rb"[0-9]+")
_DECIMAL: Final = re.compile(rb"[0-9.]+")


def limit_to(count: int | None) -> Fields:
    """The fields for a limit on all hosts; None: no limit. Raises InvalidRule."""
    return {"limit": _count(count)}


def process_limit_to(count: int | None) -> Fields:
    """The fields for a limit in one child; None: no limit. Raises InvalidRule."""
    return {"process_limit": _count(count)}


def rate_to(rate: str | None, burst: int | None = None) -> Fields:
    """The fields for a rate; None: no rate. Raises InvalidRule."""
    if rate is None:
        return {"rate": LIFTED, "burst": FORGOTTEN}
    return {
        "rate": stored_rate(parse_rate(rate, burst)),
        "burst": FORGOTTEN if burst is None else str(burst),
    }


def in_force(rules: Rules, found: Mapping[bytes, bytes]) -> Rules:
    """The ``rules`` of the configuration, changed by the fields ``found`` in Redis. A field that
    cannot be read changes nothing."""
    return replace(
        rules,
        limit=_read(found.get(b"limit"), rules.limit),
        process_limit=_read(found.get(b"process_limit"), rules.process_limit),
        rate=_read_rate(found.get(b"rate"), found.get(b"burst"), rules.rate),
    )


def _count(count: int | None) -> str:
    if count is None:
        return LIFTED
    if type(count) is not int or not 0 <= count <= HIGHEST_LIMIT:
        raise InvalidRule(
            f"expected a whole number from 0 to {HIGHEST_LIMIT} as a limit, found {count!r}; "
            "None lifts it"
        )
    return str(count)


def _read(found: bytes | None, configured: int | None) -> int | None:
    if found == LIFTED.encode():
        return None
    return int(found) if found and _WHOLE.fullmatch(found) else configured


def _read_rate(found: bytes | None, burst: bytes | None, configured: Rate | None) -> Rate | None:
    if found == LIFTED.encode():
        return None
    rate = (read_stored(found.decode("ascii", "replace")) if found else None) or configured
    if rate is None or not burst:
        return rate
    if burst == LIFTED.encode():
        return replace(rate, burst=None)
    return replace(rate, burst=float(burst)) if _DECIMAL.fullmatch(burst) else rate
