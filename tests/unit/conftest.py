"""Hypothesis draws the same examples on every run, and leaves no database behind."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("forkq", derandomize=True, database=None, deadline=None)
settings.load_profile("forkq")
