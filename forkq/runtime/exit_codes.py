"""The exit codes of the master, of its children, and of what Ctrl-C ends."""

from __future__ import annotations

from typing import Final

CLEAN: Final = 0
CANNOT_BOOT: Final = 3
# The children could not boot in ``boot_timeout``, but may some time: a service manager tries again.
CANNOT_BOOT_YET: Final = 8
# The child ended in good order, but Redis refused its leases or its last counts: the master or a
# sweep must return them.
LEASES_LEFT: Final = 75
# A solo child had no memory to read its job, or to settle it.
OUT_OF_MEMORY: Final = 71
# Ctrl-C ended a command, or the third one the jobs of a tree: what a shell shows for SIGINT.
INTERRUPTED: Final = 130
# The reader of standard output has gone, as `head` does: what a shell shows for SIGPIPE.
NO_READER: Final = 141
# An error in forkq itself; its traceback is on standard error.
INTERNAL_ERROR: Final = 70
