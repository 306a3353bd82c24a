"""The buckets of the histograms: Sidekiq's of run times, and forkq's own of waits."""

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

# The upper bounds of the histogram of waits, in seconds: from the push to the start of a run.
WAIT_BOUNDS: Final = (
    *(0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0),
    *(3600.0, 14_400.0),
)
