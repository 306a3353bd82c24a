"""What happened when: each fault, and what the harness saw."""

from __future__ import annotations

import sys
import time
from pathlib import Path


class Timeline:
    """Lines of `SECONDS KIND WHAT`: printed at once unless quiet, and kept in a file."""

    def __init__(self, path: Path, *, quiet: bool) -> None:
        self.began = time.monotonic()
        self._file = path.open("w")
        self._quiet = quiet

    def note(self, kind: str, what: str) -> None:
        """Adds one line."""
        line = f"{time.monotonic() - self.began:8.2f} s  {kind:<18} {what}\n"
        self._file.write(line)
        self._file.flush()
        if not self._quiet:
            sys.stdout.write(line)
            sys.stdout.flush()

    def close(self) -> None:
        """The end of the run."""
        self._file.close()
