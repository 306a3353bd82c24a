"""Deleted jobs are put back: for ten minutes Redis keeps those that were deleted with ``undo``."""

from __future__ import annotations

from .outcome import OnProgress, Outcome


def undo(token: str, *, progress: OnProgress | None = None) -> Outcome:
    """Puts back the jobs that were deleted under ``token``, with their times: into their set, or
    to the end of their queue that is fetched last. A second call finds nothing to do.

    Raises ForkqError if Redis keeps nothing under this token: the ten minutes are over, or they
    were put back. Raises ServerUnavailable.
    """
    raise NotImplementedError
