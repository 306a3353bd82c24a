"""Tables of Markdown from a record, and the places in documents where they stand."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from tests.bench.compare.peers import FORKQ, PEERS
from tests.bench.compare.plan import NAP, NOOP, WIDE
from tests.bench.compare.record import Record, Row, middle

Table = Callable[[Record], str]
IDEAL = 1000  # jobs of 10 ms in ten threads, per second


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), *[list(row) for row in rows]]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _rough(value: float) -> str:
    """Two digits below a hundred, else three: the figures carry no more."""
    rounded = float(f"{value:.{3 if value >= 100 else 2}g}")
    return f"{rounded:,.0f}" if rounded >= 100 else f"{rounded:g}"


def _spread(values: list[float]) -> str:
    if not values:
        return "none"
    median, least, most = (_rough(value) for value in middle(values))
    return median if len(values) == 1 else f"{median} ({least} to {most})"


def _networks(record: Record, kind: str) -> list[float]:
    return sorted({row["network"] for row in record.cells if row["kind"] == kind})


def _head(record: Record, kind: str, first: str) -> list[str]:
    return [first, *(_network(network) for network in _networks(record, kind))]


def _network(milliseconds: float) -> str:
    return f"{milliseconds:g} ms" if milliseconds else "same machine"


def _measured(record: Record, threads: int) -> list[str]:
    """The peers with figures, in the order of the list; forkq first."""
    return [name for name in PEERS if record.rows(name, threads=threads)]


def _rates(record: Record, kind: str, threads: int) -> str:
    rows = [
        [name, *(_rate(record, name, kind, threads, one) for one in _networks(record, kind))]
        for name in _measured(record, threads)
    ]
    return _table(_head(record, kind, "jobs/s"), rows)


def _rate(record: Record, peer: str, kind: str, threads: int, network: float) -> str:
    rows = record.rows(peer, kind=kind, threads=threads, network=network)
    return _spread([row["rate"] for row in rows])


def _ratios(record: Record, kind: str, threads: int) -> str:
    wanted = {"kind": kind, "threads": threads}
    rows = [
        [
            name,
            *(
                _spread(record.ratios(name, network=one, **wanted))
                for one in _networks(record, kind)
            ),
        ]
        for name in _measured(record, threads)
        if name != FORKQ
    ]
    return _table(_head(record, kind, "forkq's rate to that of"), rows)


def _least_threads(record: Record) -> int:
    return int(min((row["threads"] for row in record.cells), default=10))


def noop(record: Record) -> str:
    return _rates(record, NOOP, _least_threads(record))


def noop_ratios(record: Record) -> str:
    return _ratios(record, NOOP, _least_threads(record))


def wide(record: Record) -> str:
    return _rates(record, NOOP, WIDE)


def wide_ratios(record: Record) -> str:
    return _ratios(record, NOOP, WIDE)


def nap(record: Record) -> str:
    return _rates(record, NAP, _least_threads(record))


def cpu(record: Record) -> str:
    """CPU time: what a busy machine changes least."""
    threads = _least_threads(record)
    wanted = {"kind": NOOP, "threads": threads, "network": 0.0}
    names = [name for name in _measured(record, threads) if record.rows(name, **wanted)]
    costs = {name: _costs(record.rows(name, **wanted)) for name in names}
    rows = [[name, *map(_spread, costs[name]), _times(costs, name)] for name in names]
    return _table(["µs of CPU per no-op job", "worker", "Redis", "worker to forkq's"], rows)


def _costs(rows: list[Row]) -> list[list[float]]:
    return [[row[column] for row in rows] for column in ("worker_us", "redis_us")]


def _times(costs: dict[str, list[list[float]]], name: str) -> str:
    if FORKQ not in costs:
        return "none"
    return _rough(middle(costs[name][0])[0] / middle(costs[FORKQ][0])[0])


def summary(record: Record) -> str:
    """Medians alone: for a first page."""
    threads = _least_threads(record)
    rows = [[name, *_medians(record, name, threads)] for name in _measured(record, threads)]
    return _table(_head(record, NOOP, "no-op jobs/s, one worker, 10 threads"), rows)


def _medians(record: Record, peer: str, threads: int) -> list[str]:
    wanted = {"kind": NOOP, "threads": threads}
    found = [record.rows(peer, network=one, **wanted) for one in _networks(record, NOOP)]
    return [_rough(middle([row["rate"] for row in rows])[0]) if rows else "none" for rows in found]


def peers(record: Record) -> str:
    rows = [
        [name, row["version"] or f"left out: {row['missing']}", row["settings"]]
        for name, row in record.peers.items()
    ]
    return _table(["peer", "version", "settings"], rows)


def ceilings(record: Record) -> str:
    rows = []
    for network in sorted({row["network"] for row in record.ceilings}):
        found = _of(record.ceilings, network=network)
        columns = [[row.get(name, 0) for row in found] for name in ("ping_ms", "requests")]
        rows.append([_network(network), *map(_spread, columns)])
    return _table(["network", "median round trip of a PING, ms", "requests/s let through"], rows)


def machine(record: Record) -> str:
    rows = [*record.cells, *record.children, *record.latency]
    loads = [row["load"] for row in rows if "load" in row]
    one = record.machine
    median, least, most = middle(loads or [one["load_before"]])
    return (
        f"{one['processors']} processors, {one['system']}, Python {one['python']}, "
        f"{one['server']}. "
        f"Load average beside the measurements: median {median:.1f}, {least:.1f} to {most:.1f}; "
        "each row of the record has its own."
    )


def children(record: Record) -> str:
    head = ["job", "processors", "children", "jobs/s", "to one child", "µs child", "µs Redis"]
    head += ["busiest child", "Redis", "sleeps per 1,000 jobs"]
    cases = sorted({(row["kind"], -row["speed"], row["children"]) for row in record.children})
    rows = [_children_row(record, kind, -speed, count) for kind, speed, count in cases]
    return _table(head, rows)


def _children_row(record: Record, kind: str, speed: float, count: int) -> list[str]:
    found = _of(record.children, kind=kind, speed=speed, children=count)
    ones = {row["round"]: row for row in _of(record.children, kind=kind, speed=speed, children=1)}
    ratios = [row["rate"] / ones[row["round"]]["rate"] for row in found if row["round"] in ones]
    columns = [_spread([row[name] for row in found]) for name in ("child_us", "redis_us")]
    shares = [_percent(found, name) for name in ("child_share", "redis_share")]
    sleeps = _spread([1000 * row["sleeps"] for row in found])
    size = "four of half speed" if speed < 1 else "two"
    rates = [_spread([row["rate"] for row in found]), _spread(ratios)]
    return [kind, size, str(count), *rates, *columns, *shares, sleeps]


def _percent(rows: list[Row], name: str) -> str:
    return f"{100 * middle([row[name] for row in rows])[0]:.0f} %"


def _of(rows: list[Row], **wanted: object) -> list[Row]:
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def latency(record: Record) -> str:
    cases = list(dict.fromkeys((row["beside"], row["queues"]) for row in record.latency))
    rows = []
    for beside, queues in cases:
        found = _of(record.latency, beside=beside, queues=queues)
        names = ("p50", "p99", "ping_p50", "ping_p99", "load")
        rows.append(
            [beside, str(queues), *(_spread([row[name] for row in found]) for name in names)]
        )
    head = ["beside", "queues", "p50, ms", "p99, ms", "PING p50", "PING p99", "load average"]
    return _table(head, rows)


def rescue(record: Record) -> str:
    names = ("back", "half", "last", "load")
    rows = (
        [[_spread([row[name] for row in record.rescue]) for name in names]] if record.rescue else []
    )
    return _table(["all back, ms", "half have run again, ms", "all, ms", "load average"], rows)


# The columns of the table of coroutines: which kind of cell, which figure.
_COROUTINES = {
    "no-op, jobs/s": ("noop", "rate"),
    "100 ms, jobs/s": ("wait", "rate"),
    "httpx, jobs/s": ("httpx", "rate"),
    "aiohttp, jobs/s": ("aiohttp", "rate"),
    "pushes/s": ("push", "rate"),
    "p99 of a push, ms": ("push", "p99"),
    "MB with 1,000 that wait": ("hold", "whole_mb"),
    "of it for 999 jobs": ("hold", "mb"),
}


def coroutines(record: Record) -> str:
    names = list(dict.fromkeys(row["peer"] for row in record.coroutines))
    rows = [[name, *(_coroutine(record, name, *one) for one in _COROUTINES.values())]
            for name in names]  # fmt: skip
    return _table(["1,000 at once", *_COROUTINES], rows)


def _coroutine(record: Record, peer: str, kind: str, figure: str) -> str:
    found = _of(record.coroutines, peer=peer, kind=kind)
    return _spread([row[figure] for row in found if figure in row])


def coroutine_ratios(record: Record) -> str:
    """Figures that other work on the machine changes least: of neighbours, and CPU time."""
    names = list(dict.fromkeys(row["peer"] for row in record.coroutines))
    rows = [
        [
            name,
            *(_spread(_to_neighbour(record, name, kind)) for kind in ("noop", "wait", "push")),
            *(_coroutine(record, name, kind, "worker_us") for kind in ("noop", "wait", "aiohttp")),
        ]
        for name in names
    ]
    head = [f"forkq's rate to that, {kind}" for kind in ("no-op", "100 ms", "pushes")]
    costs = [f"µs of CPU, {kind}" for kind in ("no-op", "100 ms", "aiohttp")]
    return _table(["", *head, *costs], rows) + _beside(record.coroutines)


def _beside(rows: list[Row]) -> str:
    """What else the machine did while these were measured."""
    loads = [row["load"] for row in rows if "load" in row]
    if not loads:
        return ""
    median, least, most = middle(loads)
    versions = ", ".join(sorted({row["python"] for row in rows if "python" in row}))
    return (
        f"\n\nPython {versions}. Load average beside these cells: median {median:.1f}, "
        f"{least:.1f} to {most:.1f}."
    )


def _to_neighbour(record: Record, peer: str, kind: str) -> list[float]:
    """forkq's rate to that peer's, in the cell beside it."""
    rows, ours = record.coroutines, f"{FORKQ}-async"
    found = []
    for place, row in enumerate(rows):
        if (row["peer"], row["kind"]) != (peer, kind) or "rate" not in row:
            continue
        near = [one for one in rows[max(0, place - 1) : place + 2] if one["kind"] == kind]
        found += [one["rate"] / row["rate"] for one in near if one["peer"] == ours][:1]
    return found


def failures(record: Record) -> str:
    rows = [*record.cells, *record.coroutines]
    found = [_failure(row) for row in rows if "failed" in row]
    return "\n".join(found) or "No cell failed."


def _failure(row: Row) -> str:
    said = " ".join(row["failed"].split())[-120:]
    return f"- {row['peer']}, {row['kind']}, {_network(row.get('network', 0.0))}: `{said}`"


TABLES: dict[str, Table] = {
    "machine": machine,
    "summary": summary,
    "noop": noop,
    "noop-ratios": noop_ratios,
    "wide": wide,
    "wide-ratios": wide_ratios,
    "nap": nap,
    "cpu": cpu,
    "peers": peers,
    "ceilings": ceilings,
    "children": children,
    "latency": latency,
    "rescue": rescue,
    "coroutines": coroutines,
    "coroutine-ratios": coroutine_ratios,
    "failures": failures,
}
PLACE = re.compile(r"(<!-- figures: ([\w-]+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)


def filled(text: str, record: Record) -> str:
    """The document with each of its tables made anew."""

    def put(match: re.Match[str]) -> str:
        return f"{match[1]}\n{TABLES[match[2]](record)}\n\n{match[3]}"

    return PLACE.sub(put, text)


def printed(record: Record) -> str:
    """All tables, for a terminal."""
    return "\n\n".join(f"{name}\n{table(record)}" for name, table in TABLES.items())
