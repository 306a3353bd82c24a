"""A run: the cells in their order, until they are done or the time is over."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from forkq.values import replace
from tests.bench.compare.ceiling import ceiling
from tests.bench.compare.cell import Failed, Keys, Stage
from tests.bench.compare.children import several
from tests.bench.compare.coroutines import coroutines
from tests.bench.compare.environments import Found, prepare_all
from tests.bench.compare.latency import laps, rescue
from tests.bench.compare.peers import FORKQ, PEERS
from tests.bench.compare.plan import NAP, Cell, plan
from tests.bench.compare.record import Record, Row, this_machine
from tests.bench.delay import REMEDY, away, has_compiler
from tests.support.server import Server

PARTS = ("peers", "children", "latency", "coroutines")
NAPS = 3000  # jobs of 10 ms: three seconds of ten threads


@dataclass(frozen=True)
class Options:
    """What `make bench` was asked for."""

    peers: Sequence[str]
    kinds: Sequence[str]
    networks: Sequence[float]
    jobs: int
    rounds: int
    threads: int
    window: float
    minutes: float
    parts: Sequence[str]
    output: Path
    add: bool = False


class Run:
    """The server, the proxies before it, and what each peer's queue holds when it is full."""

    def __init__(self, options: Options, record: Record, server: Server) -> None:
        self._options = options
        self._record = record
        self._server = server
        self._end = time.monotonic() + 60 * options.minutes
        self._filled: dict[tuple[str, str], Keys] = {}
        self._found: dict[str, Found] = {}
        self._fronts: dict[float, Server] = {}

    def execute(self) -> None:
        options = self._options
        peers = [name for name in options.peers if name in PEERS]
        self._found = prepare_all([FORKQ, *peers])
        for name, found in self._found.items():
            row = {"version": found.version, "missing": found.missing}
            self._record.peers[name] = {**row, "settings": PEERS[name].settings}
        there = [name for name in peers if not self._found[name].missing]
        with ExitStack() as stack:
            for network in options.networks:
                self._fronts[network] = stack.enter_context(away(self._server, network / 1e3))
            for network, front in self._fronts.items():
                self._record.ceilings.append(ceiling(front, network))
            for cell in self._cells(there):
                if time.monotonic() > self._end:
                    print(f"{options.minutes:g} minutes are over", flush=True)
                    break
                self._measure(cell)
                self._record.save(options.output)

    def _cells(self, peers: Sequence[str]) -> Iterator[Cell]:
        """The plan; its rounds come after those that the record has."""
        options, rows = self._options, self._record.cells
        first = 1 + max((row["round"] for row in rows), default=-1)
        for cell in plan(peers, options.kinds, options.networks, options.threads, options.rounds):
            yield replace(cell, round=first + cell.round)

    def _measure(self, cell: Cell) -> None:
        stage = Stage(self._server, PEERS[cell.peer], self._found[cell.peer], cell.threads)
        jobs = self._jobs(cell)
        place = f"round {cell.round + 1}, {cell.kind}, {cell.network:g} ms, {cell.threads} threads"
        try:
            keys = self._fill(stage, cell, jobs)
            found = stage.measure(keys, jobs, self._fronts[cell.network].url, self._options.window)
        except Failed as error:
            self._record.add(cell, failed=str(error))
            print(f"{place}: {cell.peer} FAILED: {error}", flush=True)
            return
        self._record.add(cell, **asdict(found))
        print(f"{place}: {cell.peer} {found.rate:,.0f}/s, load {found.load:.0f}", flush=True)

    def _jobs(self, cell: Cell) -> int:
        if cell.kind == NAP:
            return NAPS
        return max(1000, round(self._options.jobs * PEERS[cell.peer].share / 1000) * 1000)

    def _fill(self, stage: Stage, cell: Cell, jobs: int) -> Keys:
        """Pushes once for all cells of a peer: some push 300 jobs a second."""
        name = cell.peer.partition("-")[0], cell.kind
        if name not in self._filled:
            self._filled[name] = stage.push(cell.kind, jobs)
        return self._filled[name]


@contextmanager
def own_server() -> Iterator[Server]:
    """A server that writes nothing to disk."""
    server = Server(tcp=True).start()
    try:
        yield server
    finally:
        server.close()


def run(options: Options) -> None:
    """Measures, and leaves the record in `options.output`."""
    if any(options.networks) and not has_compiler():
        raise SystemExit(f"bench: the delaying proxy must be compiled. {REMEDY}")
    with own_server() as server:
        record = _begun(options, server)
        if "peers" in options.parts:
            Run(options, record, server).execute()
        for part, rows in _others(options, record, server):
            for row in rows:
                part.append(row)
                print(_line(row), flush=True)
                record.save(options.output)
        record.save(options.output)


def _line(row: Row) -> str:
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in row.items()
    )


def _begun(options: Options, server: Server) -> Record:
    """An empty record; the parts that are not measured now are those of the last run."""
    with server.client() as client:
        version = client.info("server")["redis_version"]
    fresh = Record(machine=this_machine(f"Redis {version}"))
    if not options.output.exists():
        return fresh
    last = Record.load(options.output)
    if options.add:
        return last
    if "peers" not in options.parts:
        fresh.peers, fresh.ceilings, fresh.cells = last.peers, last.ceilings, last.cells
    if "children" not in options.parts:
        fresh.children = last.children
    if "latency" not in options.parts:
        fresh.latency, fresh.rescue = last.latency, last.rescue
    if "coroutines" not in options.parts:
        fresh.coroutines = last.coroutines
    return fresh


def _others(
    options: Options, record: Record, server: Server
) -> Iterator[tuple[list[Row], Iterator[Row]]]:
    """The parts after that of the peers."""
    if "children" in options.parts:
        yield record.children, several(server, options.rounds, options.window)
    if "latency" in options.parts:
        yield record.latency, laps(server, options.rounds)
        yield record.rescue, rescue(server, options.rounds)
    if "coroutines" in options.parts:
        yield record.coroutines, coroutines(server, options.peers, options.rounds)
