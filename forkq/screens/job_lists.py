"""A page of a set of jobs: which jobs the address asks for, read in bounded steps."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from .. import api
from ..api.entry import score_in
from ..api.pages import SetPages
from ..errors import ForkqError
from ..store.find_job import Location

PER_PAGE: Final = 50
FIELDS: Final = ("job", "error", "jid", "queue", "match", "older")
_SECONDS: Final = 0.3  # for the search of a page
_LONGEST: Final = 200
# What would stand in an empty list, and how it comes there.
EMPTY: Final[dict[Location, tuple[str, str]]] = {
    "dead": (
        "No job is dead.",
        "A job that has failed too often, or is killed, is kept here until you retry or delete it.",
    ),
    "retrying": (
        "No job waits for a retry.",
        "A job that fails stands here until its next try, with its error.",
    ),
    "scheduled": (
        "No job is scheduled.",
        "Jobs that are pushed for later stand here: Report.perform_in(3600, ...).",
    ),
}
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class JobList:
    """``jobs`` from the place in the address on; ``after`` is the place of the next page, or "".
    ``searched`` jobs were read for it."""

    jobs: list[api.JobEntry]
    after: str
    searched: int


def asked(values: dict[str, str]) -> api.Filter:
    """The filter in the fields of an address or a form. Raises ForkqError for an age that is no
    age."""
    given = {name: values.get(name, "").strip()[:_LONGEST] or None for name in FIELDS}
    older = given.pop("older")
    return api.Filter(**given, older_than=None if older is None else _seconds(older))  # type: ignore[arg-type]


def read(location: Location, where: api.Filter, place: str = "") -> JobList:
    """A page from ``place`` (a ``JobEntry.key``) on. It ends early if nothing is found in time;
    the next page goes on from there."""
    pages = SetPages(location, newest_first=location == "dead", score=score_in(place))
    end = time.monotonic() + _SECONDS
    found: list[api.JobEntry] = []
    skipping, searched, last = bool(place), 0, ""
    while batch := pages.next():
        keys = [entry.key for entry in batch]
        start = keys.index(place) + 1 if skipping and place in keys else 0
        skipping = False
        for entry in batch[start:]:
            if len(found) == PER_PAGE:
                return JobList(found, last, searched)
            searched, last = searched + 1, entry.key
            if where.matches(entry):
                found.append(entry)
        if time.monotonic() > end:
            return JobList(found, last, searched)
    return JobList(found, "", searched)


def _seconds(text: str) -> float:
    unit = _UNITS.get(text[-1:], 1)
    number = text[:-1] if text[-1:] in _UNITS else text
    if not (number.isascii() and number.isdigit()):
        raise ForkqError(f"older than {text!r}: expected a number and s, m, h or d, such as 2h")
    return float(int(number[:12]) * unit)
