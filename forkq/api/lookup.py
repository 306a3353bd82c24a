"""One job as an entry, wherever it is."""

from __future__ import annotations

from .entry import JobEntry, found_entry
from .find import find
from .shards import first_found


def entry(jid: str) -> JobEntry | None:
    """The job, wherever it waits or runs, as an entry that can be acted on; None if it is nowhere.

    The actions of a running job return False: only its process may end it. Searches as ``find``.
    """
    return first_found(lambda: _entry(jid))


def _entry(jid: str) -> JobEntry | None:
    found = find(jid)
    return None if found is None else found_entry(found)
