"""Files without a name, which the master shares with one child. The master makes them before the
fork, so they outlive the child; their descriptors outlive an exec of the master."""

from __future__ import annotations

import os
import tempfile


def make(purpose: str) -> int:
    """A descriptor; ``purpose`` is what the system shows of it, if it has such a thing. Raises
    OSError."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(f"forkq-{purpose}")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
