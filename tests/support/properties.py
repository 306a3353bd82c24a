"""Hypothesis draws the same examples on every run, however slow the machine is just now, and leaves
no database behind.

To be imported before each module that has a property: `@settings(...)` of a test takes the rest
from the profile of the moment in which its module is imported.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "forkq",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("forkq")
