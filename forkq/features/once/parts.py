"""What the push of a job with ``once`` needs: values, without I/O.

The option is for the push alone: the payload says nothing of it. The script that pushes the job
notes its jid for a day (``Keys.pushed``), and pushes no job whose jid is noted.
"""

from __future__ import annotations

from typing import Any, Final

from ...wire.options import OPTIONS

ONCE: Final = "once"
KNOWN_FOR: Final = 86400.0  # seconds, as in once.lua


def ask(name: str, needs: dict[str, Any]) -> bool:
    """Whether a job of this ``name`` is pushed once. Takes the option out of its ``needs``. Raises
    InvalidJob for another value than the option can have: a raw push may have written it there."""
    found = needs.pop(ONCE, False)
    if not (row := OPTIONS[ONCE]).values.fits(found):
        raise row.refusal(name, ONCE, found)
    return bool(found)
