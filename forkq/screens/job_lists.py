"""A page of jobs: which ones the address asks for, read in bounded steps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final, Protocol

import msgspec

from .. import api
from ..api.entry import score_in
from ..api.pages import ListPages, SetPages
from ..store.find_job import Location
from ..units import parse_age

PER_PAGE: Final = 50
FIELDS: Final = ("job", "error", "jid", "queue", "match", "older")
_SECONDS: Final = 0.3  # for the search of a page
_BYTES: Final = 32 << 20  # of payloads that are read for it
_LONGEST: Final = 200


class JobList(msgspec.Struct, frozen=True):
    """``jobs`` from the place in the address on; ``after`` is the place of the next page, or "".
    ``searched`` jobs were read for it."""

    jobs: list[api.JobEntry]
    after: str
    searched: int


class JobReader(Protocol):
    """Reads jobs from a place on."""

    @property
    def place(self) -> str:
        """The place behind the job that was read last."""

    def __iter__(self) -> Iterator[api.JobEntry]: ...


def asked(values: dict[str, str]) -> api.Filter:
    """The filter in the fields of an address or a form. Raises ForkqError for an age that is no
    age."""
    given = {name: _trimmed(values.get(name, ""))[:_LONGEST] or None for name in FIELDS}
    older = given.pop("older")
    return api.Filter(**given, older_than=None if older is None else parse_age(older))  # type: ignore[arg-type]


def _trimmed(text: str) -> str:
    """The text without the spaces around it; "=NAME" stays exact."""
    return text if text.startswith("=") else text.strip()


def read(server: api.Server, location: Location, where: api.Filter, place: str = "") -> JobList:
    """A page of a set from ``place`` (a ``JobEntry.key``) on. It ends early if nothing is found in
    time; the next page goes on from there."""
    return collect(SetReader(server, location, place), where)


def collect(
    reader: JobReader, where: api.Filter, most: int = PER_PAGE, seconds: float = _SECONDS
) -> JobList:
    """Collects at most ``most`` of the jobs that are read, as far as time and bytes allow."""
    end, left = time.monotonic() + seconds, _BYTES
    found: list[api.JobEntry] = []
    searched, after = 0, ""
    for entry in reader:
        if len(found) == most or left < 0 or (searched % 64 == 63 and time.monotonic() > end):
            return JobList(found, after, searched)
        searched, left = searched + 1, left - len(entry.raw)
        if where.matches(entry):
            found.append(entry)
        if len(found) == most or left < 0 or searched % 64 == 63:
            after = reader.place
    return JobList(found, "", searched)


class SetReader:
    """Reads a set; ``place`` is a ``JobEntry.key``."""

    def __init__(self, server: api.Server, location: Location, place: str) -> None:
        self._pages = SetPages(
            server, location, newest_first=location == "dead", score=score_in(place)
        )
        self._begin = place
        self._last: api.JobEntry | None = None

    @property
    def place(self) -> str:
        """The place behind the job that was read last."""
        return self._begin if self._last is None else self._last.key

    def __iter__(self) -> Iterator[api.JobEntry]:
        skipping = bool(self._begin)
        while batch := self._pages.next():
            keys = [entry.key for entry in batch] if skipping else []
            start = keys.index(self._begin) + 1 if self._begin in keys else 0
            skipping = False
            for self._last in batch[start:]:
                yield self._last


class QueuesReader:
    """Reads all queues by name, the latest job first: what is fetched meanwhile does not move them.
    ``place`` is how many jobs of which queue were read: ``120/mail``."""

    def __init__(self, server: api.Server, place: str) -> None:
        self._server = server
        read, _, self._queue = place.partition("/")
        self._read = int(read[:18]) if read.isascii() and read.isdigit() else 0

    @property
    def place(self) -> str:
        """The place behind the job that was read last."""
        return f"{self._read}/{self._queue}"

    def __iter__(self) -> Iterator[api.JobEntry]:
        for name in [one for one in api.queue_names(self._server) if one >= self._queue]:
            self._read = self._read if name == self._queue else 0
            self._queue = name
            pages = ListPages(self._server, name, newest_first=True, offset=self._read)
            while batch := pages.next():
                for entry in batch:
                    self._read += 1
                    yield entry
