"""A warning about queues that are not known: most likely their names are misspelt."""

from __future__ import annotations

from collections.abc import Iterable

from .. import api
from ..config.config import Config
from ..errors import nearest
from ..limits.patterns import matches_any
from ..runtime.unserved import Unserved
from ..wire.printable import shown_name
from .output import echo


def warn_of_unknown_queues(server: api.Server, names: Iterable[str], config: Config) -> None:
    """Warns on standard error of each queue that had no push so far and that no capsule serves."""
    known = sorted({*api.queue_names(server), *config.queue_names})
    for name in names:
        if not matches_any(name, known):
            near = nearest(name, known)
            hint = f'; the nearest is "{shown_name(near)}"' if near else ""
            shown = shown_name(name)
            echo(f'warning: no job has been pushed to "{shown}" so far{hint}', err=True)


def report_unserved_queue(found: Unserved, config: Config) -> None:
    """Says that no capsule serves a queue, where a job would wait for ever."""
    served = ", ".join(map(shown_name, config.queue_names))
    hint = f"did you mean {found.meant!r}?" if found.meant else f"they work on {served}"
    place = config.source or "the configuration"
    what = f"the queue {found.queue!r} of {found.whose}"
    echo(f"forkq: no capsule in {place} works on {what}; {hint}", err=True)
