"""The buckets of Sidekiq's histogram of run times."""

from __future__ import annotations

from typing import Final

# The upper bounds of Sidekiq's histogram of run times. A bound itself belongs to the next bucket;
# one more bucket has all longer times. Milliseconds in docs/wire.md, seconds here.
BOUNDS: Final = tuple(
    bound / 1000
    for bound in (
        *(20, 30, 45, 65, 100, 150, 225, 335, 500, 750),
        *(1100, 1700, 2500, 3800, 5750, 8500, 13_000, 20_000),
        *(30_000, 45_000, 65_000, 100_000, 150_000, 225_000, 335_000),
    )
)
