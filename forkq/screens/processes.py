"""Processes as tables: by host, each with what it does and since when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Final

import msgspec

from .. import api
from ..units import format_duration, format_share, format_size
from ..wire.lease import Blocking
from ..wire.printable import printable
from .table import (
    BROWSER,
    COMMAND,
    LIVE,
    TERMINAL,
    Button,
    Cell,
    Column,
    Empty,
    Front,
    Moment,
    Phrase,
    Share,
    Sheet,
    Tone,
    note,
    tag,
)
from .texts import name

_SILENT: Final = 30.0  # seconds without a heartbeat
_DAYS: Final = 30  # for which deploys are looked up: few processes run for longer
_NOT_TERMINAL: Final[frozenset[Front]] = COMMAND | BROWSER


class Host(msgspec.Struct, frozen=True):
    """The processes of one host, and what they have together. ``rss`` in KiB."""

    name: str
    processes: tuple[api.Process, ...]

    @property
    def busy(self) -> int:
        return sum(process.busy for process in self.processes)

    @property
    def threads(self) -> int:
        return sum(process.concurrency for process in self.processes)

    @property
    def rss(self) -> int:
        return sum(process.rss for process in self.processes)

    @property
    def cpu(self) -> float | None:
        """The processor time of the processes that say it; None if none does."""
        used = [process.cpu for process in self.processes if process.cpu is not None]
        return sum(used) if used else None


def hosts(processes: Sequence[api.Process]) -> list[Host]:
    """The hosts of ``processes``, which are in the order of their hosts."""
    groups = groupby(processes, key=lambda process: process.hostname)
    return [Host(name, tuple(members)) for name, members in groups]


class ProcessLine(msgspec.Struct, frozen=True):
    """A process, and the deploy that was the last one when it started, if it is known."""

    process: api.Process
    deploy: api.Deploy | None = None


def of_processes(server: api.Server, processes: Iterable[api.Process]) -> list[ProcessLine]:
    """The lines of these processes."""
    found = list(processes)
    marks = api.Metrics(server).deploys(_DAYS) if found else []
    return [ProcessLine(one, _last_before(one.started_at, marks)) for one in found]


def by_host(lines: Iterable[ProcessLine]) -> list[tuple[Host, list[ProcessLine]]]:
    """The lines of each host; ``lines`` are in the order of their hosts."""
    groups = groupby(lines, key=lambda line: line.process.hostname)
    found = [(name, list(members)) for name, members in groups]
    return [(Host(name, tuple(one.process for one in them)), them) for name, them in found]


def _last_before(moment: float, marks: Sequence[api.Deploy]) -> api.Deploy | None:
    return next((mark for mark in reversed(marks) if mark.at <= moment), None)


def blocks_the_loop(found: Blocking) -> str:
    """What blocks an event loop, in words."""
    what = f"job {name(found.job)} {name(found.jid)}" if found.sequence else "a callback of no job"
    return f"{what} blocks the event loop"


def held_up(server: api.Server) -> list[str]:
    """The sentences about the processes whose coroutines wait, since a callback of no job blocks
    their event loop. A job that blocks one is named among the jobs that run."""
    now, every = server.now(), api.processes(server)
    blocked = ((one, one.blocking) for one in every if one.blocking and not one.blocking.sequence)
    return [
        f"{blocks_the_loop(found)} of process {process.pid} on {name(process.hostname)}, for "
        f"{format_duration(now - found.since)}, in {printable(found.place)}"
        for process, found in blocked
    ]


def capsules_and_pid(process: api.Process) -> str:
    """What a process is called on its host."""
    return f"{', '.join(process.capsules) or process.tag} {process.pid}"


def _process(line: ProcessLine) -> Cell:
    process = line.process
    named = Phrase(capsules_and_pid(process))
    quiet = (tag("quiet", "warn"),) if process.quiet else ()
    silent = process.silent_for > _SILENT
    away = (tag(f"silent for {format_duration(process.silent_for)}", "bad"),) if silent else ()
    blocked = (tag("loop blocked", "bad"),) if process.blocking is not None else ()
    return named, *quiet, *away, *blocked


def _on_its_host(line: ProcessLine) -> Cell:
    process = line.process
    return Phrase(process.hostname), note(str(process.pid)), *_process(line)[1:]


def tree_of(process: api.Process) -> str:
    """The tag and the pid of a process's master. A process of Sidekiq has none."""
    return f"{process.tag} {process.master or ''}".strip()


def _tree(line: ProcessLine) -> Cell:
    process = line.process
    tree, program = tree_of(process), "" if process.master else "Sidekiq "
    version = note(f"{program}{process.version}")
    return (Phrase(tree or "-"), version)


def _busy(busy: int, threads: int) -> Cell:
    share = Share(busy, threads, "busy threads", is_said=True)
    return Phrase(f"{busy} of {threads}"), share


def _cpu(percent: float | None) -> Cell:
    return () if percent is None else (Phrase(format_share(percent / 100)),)


def _memory(kib: int) -> Cell:
    return (Phrase(format_size(kib * 1024)),)


def _busy_threads(line: ProcessLine) -> Cell:
    return _busy(line.process.busy, line.process.concurrency)


def _heartbeat(line: ProcessLine) -> Cell:
    process = line.process
    late: Tone = "bad" if process.silent_for > _SILENT else ""
    return (Moment(process.beat, f"{format_duration(process.silent_for)} ago", late),)


def _deploy(line: ProcessLine) -> Cell:
    """The deploy that runs in a process, if ``forkq mark-deploy`` was called before it started."""
    return () if line.deploy is None else (Phrase(line.deploy.label),)


def _deploy_label(line: ProcessLine) -> str | None:
    return None if line.deploy is None else line.deploy.label


def _text(told: Callable[[api.Process], str]) -> Callable[[ProcessLine], Cell]:
    return lambda line: (Phrase(told(line.process)),)


def _buttons(line: ProcessLine) -> tuple[Button, ...]:
    process = line.process
    fields = {"identity": process.identity}
    quiet = Button("/busy/quiet", "Quiet …", "quiet process", fields)
    return (
        Button("/busy/stacks", "Stacks", "dump stacks", fields),
        *(() if process.quiet else (quiet,)),
        Button("/busy/stop", "Stop …", "stop process", fields, "danger"),
    )


PROCESSES: Final[Sheet[ProcessLine]] = Sheet(
    "Processes",
    (
        Column(
            "host", "Host", _text(lambda process: process.hostname), whole=True, on=COMMAND
        ),
        Column("pid", "PID", _text(lambda process: str(process.pid)), on=COMMAND),
        Column("process", "Process", _process, least=18, on=LIVE),
        Column("tree", "Tree", _tree, on=_NOT_TERMINAL),
        Column("busy", "Busy", _busy_threads),
        Column("cpu", "CPU", lambda line: _cpu(line.process.cpu), "right", on=LIVE),
        Column(
            "memory", "Memory", lambda line: _memory(line.process.rss), "right", brief="RSS"
        ),
        Column(
            "rtt", "Round trip", _text(lambda process: f"{process.rtt_us / 1000:.1f} ms"), "right",
            on=BROWSER,
        ),
        Column("started", "Started", lambda line: (Moment(line.process.started_at),), on=BROWSER),
        Column("deploy", "Deploy", _deploy, least=6, fact=_deploy_label),
        Column("heartbeat", "Heartbeat", _heartbeat, on=_NOT_TERMINAL),
        Column(
            "state", "State", _text(lambda process: "quiet" if process.quiet else "running"),
            on=COMMAND,
        ),
        Column(
            "queues", "Queues", _text(lambda process: " ".join(process.queues)), on=_NOT_TERMINAL
        ),
    ),
    lambda line: line.process.identity,
    Empty(
        "No process runs jobs.",
        "Start one: forkq start -r your.app",
        "no process runs jobs on this Redis",
    ),
    facts=lambda line: asdict(line.process),
    words=lambda line: (line.process.hostname, line.process.tag, f"{line.process.pid}"),
    buttons=_buttons,
    command="forkq processes",
)  # fmt: skip

# The line above the processes of a host, in a terminal that shows them as a tree.
HOSTS: Final[Sheet[Host]] = Sheet(
    "Hosts",
    (
        Column("process", "Host", lambda host: (Phrase(host.name, "strong"),), on=TERMINAL),
        Column("busy", "Busy", lambda host: _busy(host.busy, host.threads), on=TERMINAL),
        Column("cpu", "CPU", lambda host: _cpu(host.cpu), "right", on=TERMINAL),
        Column("memory", "Memory", lambda host: _memory(host.rss), "right", on=TERMINAL),
    ),
    lambda host: f"host {host.name}",
    PROCESSES.empty,
)

# Those that serve a queue.
SERVING: Final[Sheet[ProcessLine]] = Sheet(
    "Who serves it",
    (
        Column(
            "process", "Process",
            _on_its_host,
        ),
        Column("busy", "Busy", _busy_threads),
        Column("heartbeat", "Heartbeat", _heartbeat),
    ),
    PROCESSES.key,
    Empty("No process serves it."),
)  # fmt: skip
