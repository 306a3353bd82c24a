"""Running jobs as tables: for how long, against what is usual, and how far they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Final

import msgspec

from .. import api
from ..units import format_count, format_duration
from ..values import replace
from ..wire.lease import Progress
from .features.iteration import left_text
from .table import (
    BROWSER,
    COMMAND,
    Button,
    Cell,
    Column,
    Empty,
    Front,
    PageLink,
    Phrase,
    Share,
    Sheet,
    Tone,
    note,
    tag,
)

_MINUTES: Final = 60
_NO_PROGRESS: Final = 60.0  # seconds
# A heartbeat says in whole seconds when a job has begun.
_WHOLE: Final = 1.0  # seconds
_NOT_TERMINAL: Final[frozenset[Front]] = COMMAND | BROWSER


class RunLine(msgspec.Struct, frozen=True):
    """A job that runs. ``process`` is None if it sends no heartbeat, or is not looked at.
    ``usual``: the time in which 95 of 100 runs end; 0: unknown."""

    job: api.RunningJob
    process: api.Process | None = None
    usual: float = 0.0

    @property
    def is_late(self) -> bool:
        """Whether the job runs for twice as long as usual, and a person should look."""
        return bool(self.usual) and self.exceeds(2 * self.usual)

    def exceeds(self, seconds: float) -> bool:
        """Whether the job surely runs for longer than that: a heartbeat has told when it began."""
        return bool(self.job.thread) and self.job.elapsed - _WHOLE > seconds


def of_jobs(jobs: Iterable[api.RunningJob]) -> list[RunLine]:
    """The lines of running jobs, by what they say of themselves."""
    return [RunLine(job) for job in jobs]


def compared(
    server: api.Server, jobs: Sequence[api.RunningJob], processes: Iterable[api.Process]
) -> list[RunLine]:  # fmt: skip
    """The lines of running jobs, beside their processes and what is usual for their classes."""
    known, times = {process.identity: process for process in processes}, usual(server, jobs)
    return [RunLine(job, known.get(job.identity), times.get(job.job, 0.0)) for job in jobs]


def usual(server: api.Server, jobs: Iterable[api.RunningJob]) -> dict[str, float]:
    """The time that 95 of 100 runs of each class did not exceed, if that is known."""
    names = sorted({job.job for job in jobs})
    found = api.Metrics(server).histograms(names, _MINUTES) if names else {}
    known = {name: histogram.percentile(95) for name, histogram in found.items()}
    return {name: seconds for name, seconds in known.items() if seconds}


def _job(line: RunLine) -> Cell:
    job = line.job
    link = PageLink("/job", {"queue": job.queue, "jid": job.jid})
    lost = () if job.heartbeat else (tag("no heartbeat", "bad"),)
    return Phrase(job.job, "name", link=link), *lost


def _queue(line: RunLine) -> Cell:
    return (Phrase(line.job.queue, link=PageLink("/queue", {"name": line.job.queue})),)


def elapsed(job: api.RunningJob) -> str:
    """For how long a job runs, in words: ``< 8 s`` if no heartbeat has told of it yet."""
    return _at_most(job, job.elapsed)


def _elapsed(line: RunLine) -> Cell:
    late: Tone = "warn" if line.is_late else ""
    return (Phrase(elapsed(line.job), late),)


def _silence(line: RunLine) -> Cell:
    job = line.job
    return (Phrase(_at_most(job, job.silent_for) if job.heartbeat else "no heartbeat"),)


def _at_most(job: api.RunningJob, time: float) -> str:
    return format_duration(time) if job.thread else f"< {format_duration(time)}"


def progress_text(progress: Progress, left: float | None) -> str:
    """The progress of a job in words, such as "120 of 1,000 pages, about 5 min left"."""
    counted = " items done" if progress.items == progress.done else " done"
    whole = f" of {format_count(progress.total)}" if progress.total else counted
    text = f"{format_count(progress.done)}{whole} {progress.note}".strip()
    return f"{text}, {left_text(left)}" if left else text


def _progress(line: RunLine) -> Cell:
    """The cell with the progress that a job reports, unless it blocks all others; without one, on a
    screen, its time against the usual one."""
    job, reported = line.job, line.job.progress
    if job.blocks:
        return (Phrase("blocks the event loop", "bad"),)
    if reported is None:
        return _against_usual(line)
    silent = job.silent_for > _NO_PROGRESS
    still = (note(f"none for {format_duration(job.silent_for)}", "warn"),) if silent else ()
    left, total = job.seconds_left, reported.total
    shares = (Share(reported.done, total, "progress", is_said=left is not None),) if total else ()
    return *shares, Phrase(progress_text(reported, left)), *still


def _against_usual(line: RunLine) -> Cell:
    """The time of a job against the usual one, if both are known."""
    if not line.usual or not line.job.thread:
        return ()
    late: Tone = "warn" if line.is_late else ""
    share = Share(line.job.elapsed, line.usual, "its time against the 95th percentile", late)
    more = "longer than the usual" if line.exceeds(line.usual) else "usual"
    return share, note(f"{more} {format_duration(line.usual)}")


def _process(line: RunLine) -> Cell:
    """The cell with host and pid of a job's process, a name that ``forkq processes stacks``
    takes."""
    host, _, rest = line.job.identity.partition(":")
    return (Phrase(f"{host}:{rest.partition(':')[0]}"),)


def _buttons(line: RunLine) -> tuple[Button, ...]:
    fields = {"jid": line.job.jid}
    return (Button("/busy/cancel", "Cancel …", "cancel jobs", fields, "danger"),)


RUNNING: Final[Sheet[RunLine]] = Sheet(
    "Running jobs",
    (
        Column(
            "jid", "Id", lambda line: (Phrase(line.job.jid, kind="id"),), whole=True,
            on=_NOT_TERMINAL, brief="JID",
        ),
        Column("job", "Job", _job, least=18),
        Column("queue", "Queue", _queue, on=_NOT_TERMINAL),
        Column("elapsed", "For", _elapsed, "right", brief="RUNS"),
        Column("silent_for", "Silent", _silence, on=COMMAND, fact=lambda line: line.job.silent_for),
        Column("progress", "Progress", _progress, least=12),
        Column("process", "Process", _process, whole=True, on=_NOT_TERMINAL),
    ),
    lambda line: f"{line.job.identity} {line.job.thread} {line.job.jid}",
    Empty(
        "No job runs.",
        "A running job stands here with its time and its progress: "
        "current_job().progress(done, total)",
        "no job is running",
    ),
    facts=lambda line: {**asdict(line.job), "seconds_left": line.job.seconds_left},
    words=lambda line: (line.job.job, line.job.jid, line.job.queue),
    buttons=_buttons,
    heading="job",
    command="forkq running",
)  # fmt: skip

# Those of one queue.
IN_FLIGHT: Final[Sheet[RunLine]] = replace(
    RUNNING,
    columns=tuple(one for one in RUNNING.columns if one.name in ("job", "jid", "elapsed")),
    empty=Empty("None of its jobs runs."),
)
