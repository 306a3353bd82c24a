"""The search for jobs by id, class, error or argument: in each place as far as its time allows."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from .. import api
from .job_lists import PER_PAGE, JobReader, QueuesReader, SetReader, collect

Place: TypeAlias = Literal["retrying", "dead", "scheduled", "queued"]

PLACES: Final[dict[Place, str]] = {
    "retrying": "Retries", "dead": "Dead", "scheduled": "Scheduled", "queued": "Queues",
}  # fmt: skip
_MOST: Final = 20  # jobs of each place, if all are searched
_SECONDS: Final = 0.15  # for each
_SECONDS_ALONE: Final = 0.8
_MOST_RUNNING: Final = 50


class PlaceFound(msgspec.Struct, frozen=True):
    """What was found in one place. ``searched`` of its ``total`` jobs were read so far; ``after``
    is where to go on, "" at the end."""

    place: Place
    jobs: list[api.JobEntry]
    searched: int
    total: int
    after: str

    @property
    def title(self) -> str:
        """The place in words."""
        return PLACES[self.place]


def search(server: api.Server, wanted: str) -> list[PlaceFound]:
    """Looks into every place."""
    return [_search(server, wanted, place, "", 0, _MOST, _SECONDS) for place in PLACES]


def search_on(
    server: api.Server, wanted: str, place: Place, after: str, searched: int
) -> PlaceFound:
    """Goes on with the search in one place, from ``after`` on, for longer."""
    return _search(server, wanted, place, after, searched, PER_PAGE, _SECONDS_ALONE)


def running(server: api.Server, wanted: str) -> list[api.RunningJob]:
    """Running jobs with that id, or that text in the name of their class."""
    text = wanted.casefold()
    found = (
        job for job in api.running(server=server) if text in job.job.casefold() or wanted == job.jid
    )
    return list(found)[:_MOST_RUNNING]


def _search(
    server: api.Server,
    wanted: str,
    place: Place,
    after: str,
    searched: int,
    most: int,
    seconds: float,
) -> PlaceFound:
    reader: JobReader = (
        QueuesReader(server, after) if place == "queued" else SetReader(server, place, after)
    )
    found = collect(reader, api.Filter(match=wanted), most, seconds)
    return PlaceFound(
        place, found.jobs, searched + found.searched, _total(server, place), found.after
    )


def _total(server: api.Server, place: Place) -> int:
    return api.stats(server).enqueued if place == "queued" else api.job_set(place, server).size
