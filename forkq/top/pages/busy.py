"""What runs, and whether it moves: hosts, their children, the jobs of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final

from rich.text import Text

from ... import api
from ...errors import ForkqError
from ...screens import job_acts, process_acts
from ...screens.plans import Plan
from ...screens.processes import HOSTS, PROCESSES, Host, ProcessLine, by_host, of_processes
from ...screens.running import RUNNING, RunLine, compared
from ...screens.table import Column, Phrase, Sheet, TableRow, shown_of
from ...screens.texts import name
from ...units import format_duration, format_moment, plural
from ...values import replace
from ..cells import QUIET, STRONG, WARN, cell, words
from ..content import Act, Content, Look, Page, Row, Selection, drawn_row
from .job import JobPage

_MOST: Final = 200  # processes, and jobs
_FIRST: Final[Column[Any]] = Column("first", "Host, child, job", lambda _: (), least=18)
_OF_PROCESSES: Final = PROCESSES.columns_on("top")
_OF_JOBS: Final = RUNNING.columns_on("top")
_COLUMNS: Final = (_FIRST, *_OF_PROCESSES[1:], *_OF_JOBS[1:])


class BusyPage(Page):
    """The page of running jobs: the longest run first, in its child."""

    title: ClassVar[str] = "Busy"
    number: ClassVar[str] = "3"
    tab: ClassVar[bool] = True
    letter: ClassVar[str] = "b"
    path: ClassVar[str] = "/busy"
    question: ClassVar[str] = "What is running, and is it moving?"

    def content(self, look: Look) -> Content:
        facts, jobs = look.observer.facts(), api.running(server=look.server)
        shown = facts.processes[:_MOST]
        runs = _by_process(compared(look.server, jobs[:_MOST], facts.processes))
        lines = by_host(of_processes(look.server, shown))
        rows = [row for one in lines for row in _host(*one, runs, look)]
        rows += [_job(run, look) for run in RUNNING.chosen(runs.get(None, ()), look.wanted)]
        head = _cut(PROCESSES, len(facts.processes)) + _cut(RUNNING, len(jobs))
        empty = " ".join(PROCESSES.empty[:2])
        return Content(head, _COLUMNS, rows, foot=_foot(look), empty=empty)

    def acts(self) -> Mapping[str, Act]:
        return {
            "stacks": lambda server, chosen: _order(server, chosen, process_acts.stacks),
            "quiet": lambda server, chosen: _order(server, chosen, process_acts.quiet),
            "stop": lambda server, chosen: _order(server, chosen, process_acts.stop),
            "cancel": _cancel,
        }

    def open(self, target: Any) -> Page | None:
        return JobPage(jid=target.job.jid) if isinstance(target, RunLine) else None


def _order(
    server: api.Server, chosen: Selection, act: Callable[[api.Server, api.Process], Plan]
) -> Plan:
    """The plan of an order to a process; on a job it is for the job's child."""
    [target] = chosen.targets
    process = None if isinstance(target, Host) else target.process
    if process is None:
        raise ForkqError("Choose a child, or a job of one: they take orders, hosts do not.")
    living = api.ProcessSet(server).get(process.identity)
    if living is None:
        raise ForkqError("This process has ended.")
    return act(server, living)


def _cancel(server: api.Server, chosen: Selection) -> Plan:
    [target] = chosen.targets
    if not isinstance(target, RunLine):
        raise ForkqError("Choose a job: hosts and children are not cancelled.")
    return job_acts.cancel_running(server, target.job.jid)


def _cut(sheet: Sheet[Any], total: int) -> list[Text]:
    """The sentence that not all are shown."""
    cut = shown_of(min(total, _MOST), total, sheet.command)
    return [words((f"{sheet.name}: {cut}", WARN))] if cut else []


def _by_process(runs: Iterable[RunLine]) -> dict[str | None, list[RunLine]]:
    """The runs by the identity of their process; None: those of processes that say nothing."""
    found: dict[str | None, list[RunLine]] = defaultdict(list)
    for run in runs:
        found[None if run.process is None else run.process.identity].append(run)
    return found


def _host(
    host: Host,
    processes: Iterable[ProcessLine],
    runs: Mapping[str | None, list[RunLine]],
    look: Look,
) -> Iterator[Row]:
    """The line of a host, and those of its children with their jobs; with a search, only what that
    finds."""
    lines = []
    for line in processes:
        jobs = RUNNING.chosen(runs.get(line.process.identity, ()), look.wanted)
        if jobs or PROCESSES.chosen([line], look.wanted):
            row = PROCESSES.row(_OF_PROCESSES, line)
            lines += [_below(row, 1, look), *(_job(run, look) for run in jobs)]
    if lines:
        yield _below(HOSTS.row(HOSTS.columns, host), 0, look)
        yield from lines


def _job(run: RunLine, look: Look) -> Row:
    return _below(RUNNING.row(_OF_JOBS, run), 2, look)


def _below(row: TableRow, depth: int, look: Look) -> Row:
    """A line of the tree: its name is in the first column, moved in by its depth."""
    called, *others = row.cells.items()
    cells = {"first": (Phrase("  " * depth), *called[1]) if depth else called[1], **dict(others)}
    return drawn_row(replace(row, cells=cells), _COLUMNS, look)


def _foot(look: Look) -> list[Text]:
    target = look.cursor.target if look.cursor else None
    if isinstance(target, ProcessLine):
        return _of_process(target.process)
    if not isinstance(target, RunLine):
        return []
    times = f", 95 of 100 end within {format_duration(target.usual)}" if target.usual else ""
    return [words((name(target.job.jid), STRONG), f"  queue {name(target.job.queue)}{times}")]


def _of_process(process: api.Process) -> list[Text]:
    master = f", master {process.master}" if process.master else ""
    first = words((name(process.identity), STRONG), (f"  {name(process.version)}{master}", QUIET))
    trip = format_duration(process.rtt_us / 1e6)
    beat = f"heartbeat {format_duration(process.silent_for)} ago, round trip {trip}"
    serves = f"serves {plural(len(process.queues), 'queue')}: {', '.join(process.queues)}"
    began = format_moment(process.started_at)
    return [first, words((f"{beat}, started {began}", QUIET)), cell(serves)]
