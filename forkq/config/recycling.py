"""When the master replaces a child that works: its memory, its age, and the jobs that it has run.

The same keys are under ``[forkq]``, for all capsules, and under ``[capsules.NAME]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from msgspec import Meta

from ..errors import ConfigError
from ..units import EXPECTED_SIZE, format_size, parse_size
from .schema import Key, keys_of

_Size = Annotated[str, Meta(description=EXPECTED_SIZE), parse_size]
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
        "After about how many jobs (up to a tenth fewer) a child is replaced; 0 is no limit.",
        ("FORKQ_MAX_JOBS",), per_capsule=True,
    )] = 0  # fmt: skip
    max_age: Annotated[_LongTime, Key(
        "After about how many seconds (up to a tenth fewer) a child is replaced; 0 is no limit.",
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
        return format_size(value) if value else "0"

    def check(self, place: str) -> None:
        """Raises ConfigError if the two limits of memory contradict each other. ``place`` is the
        table that has them."""
        if 0 < self.hard_max_memory < self.max_memory:
            raise ConfigError(
                f"{place}: hard_max_memory ({format_size(self.hard_max_memory)}) is below "
                f"max_memory ({format_size(self.max_memory)}); a child above the hard limit is "
                "killed, so it must be the higher one"
            )


RECYCLING: Final = tuple(keys_of(Recycling))
