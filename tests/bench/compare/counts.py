"""How many jobs have run: the file in which they count themselves (peers/bench_jobs.py)."""

from __future__ import annotations

import mmap
from pathlib import Path

PLACES = 512


class Counts:
    """The file, mapped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(8 * PLACES))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._cells = memoryview(self._map).cast("Q")

    def total(self) -> int:
        """How many jobs have run, in all processes."""
        return sum(self._cells[1 : self._cells[0] + 1])

    def close(self) -> None:
        self._cells.release()
        self._map.close()
        self.path.unlink()
