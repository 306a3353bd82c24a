"""Removes the values of jobs from what Sentry is sent: local variables have the arguments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forkq.api.masks import masked
from forkq.runtime.app_frames import is_own


def without_values(event: Any, _hint: object, *, secret: bool) -> Any:
    """An event processor that removes values. The frames of forkq lose their variables, since these
    have the whole job. Those of the app lose them if the job is ``secret``; if not, the values of
    keys such as ``password`` are masked, as everywhere in forkq."""
    for frame in _frames(event):
        own = is_own(frame.get("abs_path") or "")
        if own:
            frame["in_app"] = False
        if secret or own:
            frame.pop("vars", None)
        elif "vars" in frame:
            frame["vars"] = masked(frame["vars"])
    return event


def _frames(event: Any) -> Iterator[dict[str, Any]]:
    for key in ("exception", "threads"):
        for value in (event.get(key) or {}).get("values") or ():
            yield from (value.get("stacktrace") or {}).get("frames") or ()
