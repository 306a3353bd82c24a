"""Plots of a record, as SVG."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from tests.bench.compare.peers import FORKQ, PEERS
from tests.bench.compare.plan import NAP, NOOP
from tests.bench.compare.record import Record, middle

TITLES = {
    NOOP: "No-op jobs per second, one worker, 10 threads (logarithmic)",
    NAP: "Jobs of 10 ms per second, one worker, 10 threads (1,000 is the ideal)",
}


def plot(record: Record, kind: str, path: Path) -> None:
    """One line for each peer: the rate by the distance of Redis, median and spread."""
    matplotlib.rcParams["svg.hashsalt"] = "forkq"  # the same figures make the same file
    matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for place, name in enumerate(PEERS):
        _line(axes, record, kind, name, place)
    axes.set_title(TITLES[kind])
    axes.set_xlabel("round trip to Redis beyond that on the same machine, ms")
    if kind == NOOP:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    figure.savefig(path, format="svg", metadata={"Date": None})


def _line(axes: Any, record: Record, kind: str, name: str, place: int) -> None:
    points = _points(record, kind, name)
    if not points:
        return
    networks, medians, below, above = zip(*points, strict=True)
    axes.errorbar(
        networks,
        medians,
        yerr=(below, above),
        label=name,
        color="black" if name == FORKQ else f"C{place - 1}",
        linewidth=2.5 if name == FORKQ else 1.2,
        marker="o" if place < 6 else "s",
        markersize=4,
        capsize=2,
    )


def _points(record: Record, kind: str, name: str) -> list[tuple[float, float, float, float]]:
    """Network, median, and how far the least and the greatest are from it."""
    found = []
    threads = min(row["threads"] for row in record.cells)
    for network in record.values("network"):
        rows = record.rows(name, kind=kind, threads=threads, network=network)
        if rows:
            median, least, most = middle([row["rate"] for row in rows])
            found.append((network, median, median - least, most - median))
    return found


def plot_all(record: Record, folder: Path) -> list[Path]:
    """Writes each plot, and returns where."""
    paths = []
    for kind in TITLES:
        if any(row["kind"] == kind for row in record.cells):
            paths.append(folder / f"bench-{kind}.svg")
            plot(record, kind, paths[-1])
    return paths


if __name__ == "__main__":
    plot_all(Record.load(Path(sys.argv[1])), Path(sys.argv[2]))
