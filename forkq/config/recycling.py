"""When the master replaces a child that works: its memory, its age, and the jobs that it has run.

The same keys stand under ``[forkq]``, for all capsules, and under ``[capsules.NAME]``. Sizes are
texts such as "512MB"; 1MB is 1024 * 1024 bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Final

from msgspec import Meta

from ..errors import ConfigError
from .schema import Key, keys_of

_SIZE: Final = re.compile(r"\s*([0-9]{1,12}(?:\.[0-9]{1,3})?)\s*(?:([KMGT])(?:i?B)?|B)?\s*", re.I)
_UNITS: Final = ("", "K", "M", "G", "T")
_EXPECTED: Final = 'a size such as "512MB" or "1.5GB", or "0" for no limit'


def size_of(text: str) -> int:
    """``"512MB"`` in bytes. Raises ConfigError. A number without a unit would be in bytes, which is
    hardly meant."""
    match = _SIZE.fullmatch(text)
    if match is None or (match[2] is None and float(match[1]) and "b" not in text.lower()):
        raise ConfigError(f'expected {_EXPECTED}, found the string "{text[:60]}"')
    return int(float(match[1]) * 1024 ** _UNITS.index((match[2] or "").upper()))


def size_text(size: int) -> str:
    """Bytes for people: ``812MB``, ``1.5GB``."""
    number, unit = float(size), 0
    while number >= 1000 and unit < len(_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    digits = f"{number:.1f}".removesuffix(".0") if number < 10 else f"{number:.0f}"
    return f"{digits}{_UNITS[unit]}B"


_Size = Annotated[str, Meta(description=_EXPECTED), size_of]
_LongTime = Annotated[float, Meta(ge=0, le=31_536_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recycling:
    """The limits of one child: sizes in bytes, times in seconds; 0 is no limit."""

    max_memory: Annotated[int, Key(
        "A child whose own share of memory (PSS) comes above this is replaced, and ends when its "
        "jobs have.",
        ("FORKQ_MAX_MEMORY",), default="no limit", written=_Size, per_capsule=True,
    )] = 0  # fmt: skip
    hard_max_memory: Annotated[int, Key(
        "A child above this is killed at once; its jobs go back, each with a crash record.",
        ("FORKQ_HARD_MAX_MEMORY",), default="no limit", written=_Size, per_capsule=True,
    )] = 0  # fmt: skip
    max_jobs: Annotated[int, Meta(ge=0, le=1_000_000_000), Key(
        "A child that has run about so many jobs (up to a tenth fewer) is replaced; 0 is no limit.",
        ("FORKQ_MAX_JOBS",), per_capsule=True,
    )] = 0  # fmt: skip
    max_age: Annotated[_LongTime, Key(
        "A child that has lived for about so many seconds (up to a tenth fewer) is replaced; 0 is "
        "no limit.",
        ("FORKQ_MAX_AGE",), per_capsule=True,
    )] = 0.0  # fmt: skip
    drain_timeout: Annotated[_LongTime, Key(
        "Seconds after which the jobs of a replaced child are interrupted and returned to their "
        "queues; 0 is no limit.",
        ("FORKQ_DRAIN_TIMEOUT",), per_capsule=True,
    )] = 0.0  # fmt: skip

    def shown(self, key: str) -> object:
        """The value of ``key`` as forkq.toml has it."""
        value = getattr(self, key)
        if not key.endswith("memory"):
            return value
        return size_text(value) if value else "0"

    def check(self, place: str) -> None:
        """Raises ConfigError if the two limits of memory contradict each other. ``place`` is the
        table that has them."""
        if 0 < self.hard_max_memory < self.max_memory:
            raise ConfigError(
                f"{place}: hard_max_memory ({size_text(self.hard_max_memory)}) is below max_memory "
                f"({size_text(self.max_memory)}); a child above the hard limit is killed, so it "
                "must be the higher one"
            )


RECYCLING: Final = tuple(keys_of(Recycling))
