"""The exit codes of the master and of its children."""

from __future__ import annotations

from typing import Final

CLEAN: Final = 0
CANNOT_BOOT: Final = 3
# The child ended in good order, but Redis did not take its leases or its last counts: somebody
# else shall.
LEASES_LEFT: Final = 75
# An error that nobody expected; it is on standard error.
BLIND: Final = 70
