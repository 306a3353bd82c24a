"""Where a job is: by its id, or by a class, an error or text in it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from ... import api
from ..routing import page
from ..visit import View, Visit

_LONGEST: Final = 200  # characters of a search
_MOST: Final = 20  # jobs of each place
_SECONDS: Final = 1.0  # for each place
_BATCH: Final = 200
# It has a digit: the search of all queues for a name would be long, and find nothing.
_JID: Final = re.compile(r"(?=.*\d)[\w.:-]{8,100}")
_PLACES: Final = (
    ("Dead", "/dead", api.DeadSet),
    ("Retries", "/retries", api.RetrySet),
    ("Scheduled", "/scheduled", api.ScheduledSet),
)


@dataclass(frozen=True, slots=True)
class Found:
    """Jobs of one set. ``whole``: the whole set was searched."""

    title: str
    path: str
    jobs: list[api.JobEntry]
    whole: bool


def search(visit: Visit) -> View:
    wanted = visit.query("q").strip()[:_LONGEST]
    if not wanted:
        return View("search.html", {"wanted": "", "job": None, "found": []})
    found = [_search(title, path, make, wanted) for title, path, make in _PLACES]
    job = api.entry(wanted) if _JID.fullmatch(wanted) else None
    values = {"wanted": wanted, "job": job, "found": found}
    return View("search.html", values)


def _search(title: str, path: str, make: Callable[[], api.JobSet], wanted: str) -> Found:
    """Newest first, as far as the time allows."""
    end = time.monotonic() + _SECONDS
    matching = _matching(make(), wanted, end)
    jobs = list(islice(matching, _MOST))
    return Found(title, path, jobs, whole=len(jobs) < _MOST and time.monotonic() < end)


def _matching(jobs: api.JobSet, wanted: str, end: float) -> Iterator[api.JobEntry]:
    where, offset = api.Filter(match=wanted), 0
    while time.monotonic() < end:
        batch = jobs.page(offset, _BATCH, newest_first=True)
        yield from (job for job in batch if where.matches(job))
        if len(batch) < _BATCH:
            return
        offset += _BATCH


ROUTES: Final = [page("/search", search)]
