"""One job as an entry, wherever it is."""

from __future__ import annotations

from .entry import JobEntry


def entry(jid: str) -> JobEntry | None:
    """The job, wherever it waits or runs, as an entry that can be acted on; None if it is nowhere.

    The actions of a running job return False: only its process may end it. Searches as ``find``.
    """
    raise NotImplementedError
