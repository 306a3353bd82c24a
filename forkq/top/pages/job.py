"""One job: its life, its error, its arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Final

from rich.text import Text

from ... import api
from ...api.find import entry_is_being_cancelled
from ...errors import ForkqError
from ...screens import job_acts
from ...screens.features.job_facts import facts_of, feature_lines
from ...screens.frames import split
from ...screens.plans import Plan
from ...screens.texts import name, payload_text, pretty
from ...store.find_job import Location
from ...units import format_duration, format_moment, format_size, plural
from ...wire.printable import cut
from ..cells import BAD, QUIET, STRONG, cell, prose, words
from ..content import Act, Content, Look, Page, Selection

_LONGEST: Final = 10_000
_MOST_FRAMES: Final = 50


class JobPage(Page):
    """The page of one job: a member of a set by its key, or any job by its id."""

    title: ClassVar[str] = "Job"
    path: ClassVar[str] = "/job"
    question: ClassVar[str] = "What has become of this job?"
    searches: ClassVar[bool] = False
    ends: ClassVar[bool] = True

    def __init__(self, location: Location | None = None, key: str = "", jid: str = "") -> None:
        self._location = location
        self._key = key
        self._jid = jid

    def content(self, look: Look) -> Content:
        return Content(body=Text("\n").join(_lines(self._entry(look.server))))

    def acts(self) -> Mapping[str, Act]:
        found: dict[str, Act] = {}
        if self._location in job_acts.PATHS:
            found = {"retry": self._retry, "delete": self._delete, "kill": self._kill}
        found["cancel"] = self._cancel
        if self._location == "dead":
            del found["kill"], found["cancel"]
        return found

    def _entry(self, server: api.Server) -> api.JobEntry:
        located = self._location is not None
        if located:
            found = api.job_set(self._location, server).get(self._key)
        else:
            found = api.entry(self._jid, server)
        if found is None:
            raise ForkqError("This job is nowhere. It is done, was deleted, or has moved.")
        return found

    def _retry(self, server: api.Server, _: Selection) -> Plan:
        return job_acts.retry(self._chosen(server))

    def _delete(self, server: api.Server, _: Selection) -> Plan:
        return job_acts.delete(self._chosen(server))

    def _kill(self, server: api.Server, _: Selection) -> Plan:
        return job_acts.kill(self._chosen(server))

    def _cancel(self, server: api.Server, _: Selection) -> Plan:
        entry = self._entry(server)
        if entry.location == "running":
            return job_acts.cancel_running(server, entry.jid)
        return job_acts.cancel(job_acts.one(entry))

    def _chosen(self, server: api.Server) -> job_acts.ChosenJobs:
        assert self._location is not None
        return still_there(job_acts.selected(server, self._location, [self._key]))


def still_there(chosen: job_acts.ChosenJobs) -> job_acts.ChosenJobs:
    """Raises ForkqError if all of the jobs have left."""
    if not chosen.count:
        raise ForkqError("The job has left meanwhile: it is done, was deleted, or has moved.")
    return chosen


def _lines(job: api.JobEntry) -> Iterator[Text]:
    runs = f", runs in {name(job.owner)}" if job.owner else ""
    alone = ", a suspect: it runs alone" if job.suspect else ""
    ends = ", being cancelled" if entry_is_being_cancelled(job) else ""
    state = f"  {job.location}{alone}{ends}"
    yield words((name(job.name or "no job"), STRONG), state, (runs, QUIET))
    yield words((f"{name(job.jid)}  queue {name(job.queue)}", QUIET))
    features = facts_of(job)
    if "expires_at" in features:
        yield words((f"expires {format_moment(features['expires_at'])}", QUIET))
    for title, text in feature_lines(features, job.jid):
        yield words((f"its {title}: {text}", QUIET))
    if job.malformed:
        yield words((f"This is no job that can run: {name(job.malformed)}. Delete it.", BAD))
    yield from _life(job)
    yield from _error(job)
    yield from _section("Arguments", _lines_of(pretty(job.args)))
    yield from _section("The whole payload", _lines_of(payload_text(job)))


def _life(job: api.JobEntry) -> Iterator[Text]:
    known = job.events
    lines = (
        words(f"{event.what:9} ", (f"{format_moment(event.at):16} ", QUIET), cell(event.detail))
        for event in known
    )
    yield from _section("Its life", lines if known else [words("Nothing is known of its life.")])


def _error(job: api.JobEntry) -> Iterator[Text]:
    if job.error_class:
        yield words("")
        yield words((name(job.error_class), f"{STRONG} {BAD}"))
        yield from _lines_of(job.error_message)
        yield from _frames(job)
    for crash in job.crashes:
        yield words("")
        when = "" if crash.at is None else format_moment(crash.at)
        peak = f", peak {format_size(crash.rss * 1024)}" if crash.rss else ""
        ran = "" if crash.ran is None else f", after {format_duration(crash.ran)}"
        ran += f" in the step {name(crash.step)}" if crash.step else ""
        yield words(("crash ", BAD), cell(crash.why), f" {when} on {name(crash.host)}{peak}{ran}")
        yield from _lines_of(crash.stack)


def _frames(job: api.JobEntry) -> Iterator[Text]:
    frames = split(job.backtrace)
    yield from (prose(line) for line in frames.own[:_MOST_FRAMES])
    if frames.others:
        others = f"and {plural(len(frames.others), 'line')} of libraries and forkq"
        yield words((others, QUIET))
    elif not frames.own and not job.crashes:
        yield words(("No backtrace is kept: set backtrace=True in the job.", QUIET))


def _section(title: str, lines: Iterator[Text] | list[Text]) -> Iterator[Text]:
    yield words("")
    yield words((title, STRONG))
    yield from lines


def _lines_of(text: str) -> Iterator[Text]:
    """The lines of a text of the app. They wrap."""
    return map(prose, cut(text, _LONGEST).split("\n")) if text else iter(())
