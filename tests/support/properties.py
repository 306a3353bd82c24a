"""Hypothesis draws the same examples on every run, however slow the machine is just now, and leaves
no database behind.

To be imported before each module that has a property: `@settings(...)` of a test takes the rest
from the profile of the moment in which its module is imported.
"""

from __future__ import annotations

import warnings

from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import integers

settings.register_profile(
    "forkq",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("forkq")


def warm_up() -> None:
    """Draws one example. Before its first one Hypothesis reads the source of all modules that are
    imported, for constants. A process that is forked later need not."""

    @settings(max_examples=1)
    @given(integers())
    def draw(number: int) -> None: ...

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Hypothesis takes this for a slow plugin of pytest
        draw()
