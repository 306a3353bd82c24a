"""What runs, and whether it moves: hosts, their children, the jobs of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from rich.text import Text

from ... import api
from ...errors import ForkqError
from ...screens import process_acts
from ...screens.busy import Host, hosts, usual
from ...screens.plans import Plan
from ...screens.texts import name
from ...units import format_count, format_duration, format_moment, format_share, format_size, plural
from ..cells import BAD, QUIET, STRONG, WARN, bar, cell, words
from ..content import Act, Column, Content, Look, Page, Row, Selection
from .job import Job

_MOST: Final = 200  # processes, and jobs
_SILENT: Final = 30.0  # seconds without a heartbeat
_NO_PROGRESS: Final = 60.0
_BAR: Final = 8
_COLUMNS: Final = (
    Column("HOST, CHILD, JOB", least=18), Column("BUSY", "right"), Column("CPU", "right"),
    Column("MEMORY", "right"), Column("FOR", "right"), Column("PROGRESS", least=12),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Run:
    """A job that runs. ``process`` is None if it sends no heartbeat. ``usual``: the time in which
    95 of 100 runs end; 0: unknown."""

    job: api.RunningJob
    process: api.Process | None
    usual: float = 0.0

    @property
    def is_late(self) -> bool:
        known = bool(self.usual and self.job.thread)
        return known and self.job.elapsed > max(1.0, 2 * self.usual)


class Busy(Page):
    """The longest run first, in its child."""

    title: ClassVar[str] = "Busy"
    number: ClassVar[str] = "3"
    tab: ClassVar[bool] = True
    letter: ClassVar[str] = "b"
    path: ClassVar[str] = "/busy"
    question: ClassVar[str] = "What is running, and is it moving?"

    def content(self, look: Look) -> Content:
        facts = look.observer.facts()
        runs = _by_process(look.server, facts.processes)
        rows = [
            row
            for host in hosts(facts.processes[:_MOST])
            for row in _host(host, runs, look)
        ]  # fmt: skip
        rows += [_job(run) for run in runs.get(None, ()) if _wanted(run, look)]
        empty = "No process runs jobs. Start one: forkq start -r your.app"
        return Content((), _COLUMNS, rows, foot=_foot(look), empty=empty)

    def acts(self) -> Mapping[str, Act]:
        return {
            "stacks": lambda server, chosen: _order(server, chosen, process_acts.stacks),
            "quiet": lambda server, chosen: _order(server, chosen, process_acts.quiet),
            "stop": lambda server, chosen: _order(server, chosen, process_acts.stop),
        }

    def open(self, target: Any) -> Page | None:
        return Job(jid=target.job.jid) if isinstance(target, Run) else None


def _order(
    server: api.Server, chosen: Selection, act: Callable[[api.Server, api.Process], Plan]
) -> Plan:
    """On a job, it is for its child."""
    [target] = chosen.targets
    process = target.process if isinstance(target, Run) else target
    if not isinstance(process, api.Process):
        raise ForkqError("Choose a child, or a job of one: they take orders, hosts do not.")
    living = api.ProcessSet(server).get(process.identity)
    if living is None:
        raise ForkqError("This process has ended.")
    return act(server, living)


def _by_process(
    server: api.Server, processes: Iterable[api.Process]
) -> dict[str | None, list[Run]]:
    """The runs by the identity of their process; None: those of processes that say nothing."""
    jobs = api.running(server=server)[:_MOST]
    known, times = {process.identity: process for process in processes}, usual(server, jobs)
    found: dict[str | None, list[Run]] = defaultdict(list)
    for job in jobs:
        process = known.get(job.identity)
        run = Run(job, process, times.get(job.job, 0.0))
        found[None if process is None else process.identity].append(run)
    return found


def _host(host: Host, runs: Mapping[str | None, list[Run]], look: Look) -> Iterator[Row]:
    """Its line, and those of its children with their jobs; by the search, only what it finds."""
    lines = []
    for process in host.processes:
        jobs = [run for run in runs.get(process.identity, ()) if _wanted(run, look)]
        if jobs or look.wants(host.name, process.tag, f"{process.pid}"):
            lines += [_child(process), *map(_job, jobs)]
    if not lines:
        return
    used = [process.cpu for process in host.processes if process.cpu is not None]
    cells = (
        words((name(host.name), STRONG)), cell(f"{host.busy} of {host.threads}"),
        cell(_cpu(sum(used) if used else None)), cell(format_size(host.rss * 1024)),
        cell(""), cell(""),
    )  # fmt: skip
    yield Row(f"host {host.name}", cells, host)
    yield from lines


def _wanted(run: Run, look: Look) -> bool:
    return look.wants(run.job.job, run.job.jid, run.job.queue)


def _child(process: api.Process) -> Row:
    capsules = ", ".join(process.capsules) or process.tag
    silent = process.silent_for > _SILENT
    state = f"silent for {format_duration(process.silent_for)}" if silent else ""
    state = state or ("quiet" if process.quiet else "")
    cells = (
        words("  ", cell(f"{capsules} {process.pid}")),
        cell(f"{process.busy} of {process.concurrency}"),
        cell(_cpu(process.cpu)), cell(format_size(process.rss * 1024)),
        cell(""), cell(state, BAD if silent else WARN),
    )  # fmt: skip
    return Row(process.identity, cells, process)


def _job(run: Run) -> Row:
    job = run.job
    lost = "" if job.heartbeat else " (no heartbeat)"
    called = words("    ", cell(job.job, "cyan"), (lost, BAD))
    late = WARN if run.is_late else ""
    cells = (
        called,
        cell(""),
        cell(""),
        cell(""),
        cell(f"{'' if job.thread else '< '}{format_duration(job.elapsed)}", late),
        _progress(run),
    )
    return Row(f"{job.identity} {job.thread} {job.jid}", cells, run)


def _progress(run: Run) -> Text:
    """What the job reports; else its time against the usual one."""
    job, reported = run.job, run.job.progress
    if reported is None:
        if not run.usual or not job.thread:
            return cell("")
        share = bar(job.elapsed, run.usual, _BAR)
        return words((f"{share} ", QUIET), (f"usual {format_duration(run.usual)}", QUIET))
    still = f" none for {format_duration(job.silent_for)}" if job.silent_for > _NO_PROGRESS else ""
    if not reported.total:
        return words(f"{format_count(reported.done)} done ", cell(reported.note), (still, WARN))
    share = bar(reported.done, reported.total, _BAR)
    parts = f" {format_count(reported.done)} of {format_count(reported.total)} "
    return words((share, "cyan"), parts, cell(reported.note), (still, WARN))


def _foot(look: Look) -> list[Text]:
    target = look.cursor.target if look.cursor else None
    if isinstance(target, api.Process):
        return _of_process(target)
    if not isinstance(target, Run):
        return []
    times = f", 95 of 100 end within {format_duration(target.usual)}" if target.usual else ""
    return [words((name(target.job.jid), STRONG), f"  queue {name(target.job.queue)}{times}")]


def _of_process(process: api.Process) -> list[Text]:
    master = f", master {process.master}" if process.master else ""
    first = words((name(process.identity), STRONG), (f"  {name(process.version)}{master}", QUIET))
    trip = f"{process.rtt_us / 1000:.1f} ms"
    beat = f"heartbeat {format_duration(process.silent_for)} ago, round trip {trip}"
    serves = f"serves {plural(len(process.queues), 'queue')}: {', '.join(process.queues)}"
    began = format_moment(process.started_at)
    return [first, words((f"{beat}, started {began}", QUIET)), cell(serves)]


def _cpu(percent: float | None) -> str:
    return "-" if percent is None else format_share(percent / 100)
