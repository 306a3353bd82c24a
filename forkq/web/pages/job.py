"""One job: its life, its error, its arguments, and what can be done with it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ... import api
from ...api.features.results import JobResult, job_result
from ...api.features.steps import JobStep
from ...api.find import entry_is_being_cancelled
from ...api.masks import MASK
from ...api.readable_job import args_of
from ...errors import ForkqError
from ...screens import job_acts
from ...screens.features.iteration import iteration_text
from ...screens.features.job_facts import facts_of
from ...screens.features.locks import lock_text
from ...screens.features.results import result_text
from ...screens.features.steps import STEPS
from ...screens.frames import split
from ...screens.job_acts import PATHS
from ...screens.plans import ActionDone, Plan
from ...screens.texts import LONGEST, payload_text, pretty
from ...screens.texts import name as shown
from ...wire.printable import cut
from ..refused import PageRefused
from ..routing import action, page
from ..visit import View, Visit

_NOWHERE: Final = "It is done, was deleted, or has moved: search by its id."
_FAR: Final = 10**12
_FEW: Final = 50_000  # jobs in all: a search for one that may be anywhere is short
_LEFT: Final = "It is done, has failed, or was moved: search for its id."
_SETS: Final = frozenset(PATHS)


def job(visit: Visit) -> View:
    queue = visit.query("queue")
    entry = _queued(visit, queue) if queue else None
    entry = entry or _entry(
        visit.server, visit.query("set"), visit.query("key"), visit.query("jid")
    )
    features = facts_of(entry)
    values = {
        "job": entry,
        "in_set": entry.location in _SETS,
        "cancelling": entry_is_being_cancelled(entry),
        "at": visit.number("at", _FAR, _FAR),
        "queues": visit.queues,
        "path": PATHS.get(entry.location, ""),
        "frames": split(entry.backtrace),
        "args": pretty(entry.args),
        "editable": not entry.malformed and len(entry.raw) <= LONGEST,
        "payload": payload_text(entry),
        "expires_at": features.get("expires_at"),
        "lock": lock_text(features["lock"], entry.jid) if "lock" in features else "",
        "batch": features.get("batch"),
        "result_ttl": features.get("result_ttl"),
        "iteration": iteration_text(features["iteration"]) if "iteration" in features else "",
        "steps_problem": features.get("steps_problem", ""),
        "steps": STEPS.table("web", [JobStep(**one) for one in features.get("steps", ())]),
    }
    return View("job.html", values)


def _queued(visit: Visit, queue: str) -> api.JobEntry | None:
    """The job, if it still waits near the place where the list has shown it, or is in that queue;
    None if it is not. Raises PageRefused if it has left, and a search everywhere would read too
    many jobs."""
    key, jid, place = visit.query("key"), visit.query("jid"), visit.query("at")
    if (
        key
        and place
        and (
            found := job_acts.find_in_queue(visit.server, queue, [key], visit.number("at", 0, _FAR))
        )
    ):
        return found[0]
    entry = job_acts.find_jid(visit.server, queue, jid) if jid else None
    stats = visit.observer.facts().stats
    if entry is None and stats.enqueued + stats.retry + stats.dead + stats.scheduled > _FEW:
        raise PageRefused(404, f"This job has left the queue {shown(queue)}.", _LEFT)
    return entry


def edit(visit: Visit) -> Plan:
    """Replaces the arguments of a job in a set, and retries it."""
    form = visit.form
    entry = _entry(visit.server, form.get("set"), form.get("key"), "")
    args = unmasked(_read(form.get("args")), entry.args, args_of(entry.job))
    back = PATHS[entry.location]

    def do() -> ActionDone:
        edited = entry.edit(args=args)
        if edited is None or not edited.retry():
            raise PageRefused(409, "The job has left meanwhile.", "Search for it by its id.")
        return ActionDone(
            f"Changed the arguments of {shown(entry.name)} and retried it.", [entry.jid], count=1
        )

    says = f"Retry {shown(entry.name)} with other arguments?"
    details = (f"Before: {cut(pretty(entry.args), 500)}", f"Now: {cut(form.get('args'), 500)}")
    return Plan(says, do, "Retry 1 job", back, details=details)


def unmasked(edited: Any, masked: Any, real: Any) -> Any:
    """``edited``, with each value whose mask is still where it was replaced by the real one.
    Raises PageRefused for a mask in another place, or in a text that was changed."""
    if type(edited) is str and MASK in edited:
        if edited not in (masked, real):
            remedy = "Write the whole value there."
            raise PageRefused(400, f"{MASK} stands where no secret was.", remedy)
        return real
    if type(edited) is dict:
        return {
            key: unmasked(value, *(_inner(side, key) for side in (masked, real)))
            for key, value in edited.items()
        }
    if type(edited) is list:
        return [
            unmasked(value, *(_inner(side, at) for side in (masked, real)))
            for at, value in enumerate(edited)
        ]
    return edited


def _inner(value: Any, key: str | int) -> Any:
    if type(value) is dict:
        return value.get(key)
    return value[key] if type(value) is list and type(key) is int and key < len(value) else None


def _read(text: str) -> list[Any]:
    try:
        return msgspec.json.decode(text, type=list[Any])
    except (ValueError, RecursionError) as error:
        raise ForkqError(f"the arguments are no JSON array: {error}") from None


def _entry(server: api.Server, location: str, key: str, jid: str) -> api.JobEntry:
    in_set = bool(key) and location in _SETS
    if in_set:
        found = api.job_set(location, server).get(key)
    else:
        found = api.entry(jid, server) if jid else None
    if found is None:
        known = job_result(jid, server) if jid else None
        raise PageRefused(404, "This job is nowhere.", _NOWHERE if known is None else _said(known))
    return found


def _said(known: JobResult) -> str:
    """What the result of a job says that is nowhere."""
    return f"It is {result_text(known)}." if known.outcome else _NOWHERE


ROUTES: Final = [page("/job", job), action("/job/edit", "retry jobs", edit)]
