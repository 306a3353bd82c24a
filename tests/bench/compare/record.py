"""The raw figures of a run, as JSON, and what tables and plots ask of them."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.compare.peers import FORKQ
from tests.bench.compare.plan import Cell

Row = dict[str, Any]


@dataclass
class Record:
    """`cells` in the order in which they were measured: a row has a Cell's fields and what was
    measured, or `failed`. The other lists are those of the run's other parts."""

    machine: Row = field(default_factory=dict)
    peers: dict[str, Row] = field(default_factory=dict)
    ceilings: list[Row] = field(default_factory=list)
    cells: list[Row] = field(default_factory=list)
    children: list[Row] = field(default_factory=list)
    latency: list[Row] = field(default_factory=list)
    rescue: list[Row] = field(default_factory=list)
    coroutines: list[Row] = field(default_factory=list)

    def add(self, cell: Cell, **figures: object) -> None:
        self.cells.append({**asdict(cell), **figures})

    def save(self, path: Path) -> None:
        """Whole or not at all: a run that is ended leaves what it has measured."""
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_text(self._text())
        fresh.replace(path)

    def _text(self) -> str:
        """JSON with a line for each row, so that two records can be compared line by line."""
        parts = {name: _lines(value) for name, value in asdict(self).items()}
        return (
            "{\n"
            + ",\n".join(f"{json.dumps(name)}: {text}" for name, text in parts.items())
            + "\n}\n"
        )

    @classmethod
    def load(cls, path: Path) -> Record:
        return cls(**json.loads(path.read_text()))

    def rows(self, peer: str, **wanted: object) -> list[Row]:
        """The cells of that peer that were measured and have these values."""
        return [
            row
            for row in self.cells
            if row["peer"] == peer
            and "rate" in row
            and all(row[name] == value for name, value in wanted.items())
        ]

    def values(self, name: str) -> list[Any]:
        """The values of a column that occur, in order."""
        return sorted({row[name] for row in self.cells})

    def ratios(self, peer: str, **wanted: object) -> list[float]:
        """forkq's rate to that peer's, pair by pair: the cell of forkq's that stands next to it."""
        return [
            ours["rate"] / theirs["rate"]
            for ours, theirs in self._pairs(peer)
            if all(theirs[name] == value for name, value in wanted.items())
        ]

    def _pairs(self, peer: str) -> Iterator[tuple[Row, Row]]:
        for place, row in enumerate(self.cells):
            if row["peer"] != peer or "rate" not in row:
                continue
            near = self.cells[max(0, place - 1) : place + 2]
            for one in near:
                if one["peer"] == FORKQ and "rate" in one and _same(one, row):
                    yield one, row
                    break


def _lines(value: object) -> str:
    if isinstance(value, list):
        return "[" + ",".join(f"\n {json.dumps(_rounded(row))}" for row in value) + "]"
    return json.dumps(value)


def _rounded(row: Row) -> Row:
    return {
        name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()
    }


def _same(one: Row, other: Row) -> bool:
    return all(one[name] == other[name] for name in ("round", "kind", "threads", "network"))


def middle(values: list[float]) -> tuple[float, float, float]:
    """Median, least and greatest."""
    return statistics.median(values), min(values), max(values)


def this_machine(server: str) -> Row:
    """What a reader must know to read the figures."""
    return {
        "processors": os.cpu_count(),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "server": server,
        "load_before": os.getloadavg()[0],
    }
