"""What is known of one job's features: when it expires, its batch or flow, its lock, its steps, how
far it has come; for programs, and as lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ...api import JobEntry, lock_of
from ...api.features.locks import expiry_of
from ...api.features.steps import JobStep, steps_of
from ...errors import ForkqError
from ...features.results.parts import ttl_in
from ...units import format_duration, format_moment
from ...wire.marks import KEY, needs_in
from ...wire.printable import printable
from ..texts import name as shown
from . import steps
from .batches import batch_of, batch_text
from .iteration import iteration_facts, iteration_text
from .locks import lock_facts, lock_text


def facts_of(entry: JobEntry) -> dict[str, Any]:
    """What programs get of a job's features. Asks Redis for its lock, its steps and its cursor."""
    expiry, batch, lock = expiry_of(entry), batch_of(entry), lock_of(entry)
    kept_for = ttl_in(needs_in(entry.job.get(KEY)))
    return {
        **({} if expiry is None else {"expires_at": expiry}),
        **({} if batch is None else {"batch": batch}),
        **({} if lock is None else {"lock": lock_facts(lock)}),
        **({} if kept_for is None else {"result_ttl": kept_for}),
        **iteration_facts(entry),
        **_steps(entry),
    }


def _steps(entry: JobEntry) -> dict[str, Any]:
    try:
        found = steps_of(entry)
    except ForkqError as error:
        return {"steps_problem": str(error)}
    return {"steps": [steps.as_object(step) for step in found]} if found else {}


# The facts of which ``feature_lines`` has lines.
IN_LINES: Final = ("batch", "lock", "result_ttl", "iteration", "steps_problem", "steps")


def feature_lines(facts: Mapping[str, Any], jid: str) -> Iterator[tuple[str, str]]:
    """The title and the text of each fact that ``facts_of`` has found of the job ``jid``."""
    if "batch" in facts:
        yield "flow" if "step" in facts["batch"] else "batch", batch_text(facts["batch"])
    if "lock" in facts:
        yield "lock", lock_text(facts["lock"], jid)
    if "result_ttl" in facts:
        yield "result", f"kept for {format_duration(facts['result_ttl'])} after its end"
    if "iteration" in facts:
        yield "iteration", iteration_text(facts["iteration"])
    if "steps_problem" in facts:
        yield "steps", printable(facts["steps_problem"])
    for step in facts.get("steps", ()):
        since = format_moment(step["at"])
        yield "step", f"{shown(step['name'])}  {since}  {steps.state_text(JobStep(**step))}"
