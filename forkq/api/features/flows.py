"""Flows, looked at and acted on from any process."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from ...errors import ForkqError
from ...features.flow.parts import OnFailure, read_end
from ...flows.encoding import LETTERS
from ...flows.waiting import astep_result, step_result
from ...servers import Server
from .batches import BatchEntry, FlowReport, reports

# "waits": for steps before it; "started": it waits in its queue, runs, or is retried.
StepState: TypeAlias = Literal["waits", "started", "done", "dead", "otherwise", "cancelled"]

_SAID: Final[Mapping[str, OnFailure]] = {letter: how for how, letter in LETTERS.items()}
_STATES: Final[tuple[StepState, ...]] = ("started", "done", "dead", "otherwise")
_EDGE: Final = re.compile(r"(\d+)([a-z])")


@dataclass(slots=True)
class StepReport:
    """A step of a flow as it was when it was read. ``state``: "waits" for steps before it,
    "started" (it waits in its queue, runs, or is retried), "done", "dead", "otherwise" (it was
    dropped, discarded or deleted, or has expired: ``outcome``), or "cancelled". ``after``: the
    steps before it, each with what a bad end of that one means. ``waits_for``: those of them that
    keep it from starting. ``ended_at``: epoch seconds, 0 if it has not ended. ``job``: its class,
    once it has ended.
    """

    name: str
    index: int
    state: StepState
    after: dict[str, OnFailure] = field(default_factory=dict)
    waits_for: list[str] = field(default_factory=list)
    outcome: str = ""
    ended_at: float = 0.0
    job: str = ""


class FlowEntry(BatchEntry):
    """The flow of that id, to look at and to act on: ``forkq.api.Flow(bid)``. It has all of a
    ``forkq.api.Batch``. Each call asks Redis, and raises ForkqError if there is no such flow (any
    more), and ServerUnavailable."""

    def report(self) -> FlowReport:
        """How far it has come. Raises ForkqError for a batch that is no flow."""
        return self._flow()[1]

    def steps(self) -> list[StepReport]:
        """Returns the steps of the flow, each behind those that it comes after."""
        server, _ = self._flow()
        keys = server.keys
        asked = (("HGETALL", keys.flow_steps(self.bid)), ("GET", keys.batch_ends(self.bid)))
        fields, bits = server.ask_leniently(*asked)
        return _ordered(_steps(fields or {}, bits or b""))

    def get(self, name: str, timeout: float | None = None) -> Any:
        """What the step called ``name`` has returned, as ``forkq.Flow.get``."""
        return step_result(self.bid, name, timeout)

    async def aget(self, name: str, timeout: float | None = None) -> Any:
        """``get``, awaited by an event loop."""
        return await astep_result(self.bid, name, timeout)

    def _flow(self) -> tuple[Server, FlowReport]:
        server, report = self._found()
        if not isinstance(report, FlowReport):
            raise ForkqError(f"{self.bid} is a batch, and no flow: `forkq batches show {self.bid}`")
        return server, report


def flows(where: Server | Iterable[Server] | None = None) -> list[FlowReport]:
    """All flows, the one that changed last first. Raises ServerUnavailable."""
    return [report for report in reports(where) if isinstance(report, FlowReport)]


def _steps(fields: Mapping[bytes, bytes], bits: bytes) -> list[StepReport]:
    """The steps that these fields of flow.lua are about, by their indices."""
    found = {
        int(value): StepReport(name[3:].decode("utf-8", "replace"), int(value), "started")
        for name, value in fields.items()
        if name.startswith(b"of:")
    }
    for step in found.values():
        _note_state(step, fields, bits)
    for index, step in found.items():
        for number, letter in _EDGE.findall(fields.get(b"next:%d" % index, b"").decode()):
            _add_edge(step, found.get(int(number)), _SAID.get(letter, "wait"))
    return [found[index] for index in sorted(found)]


def _note_state(step: StepReport, fields: Mapping[bytes, bytes], bits: bytes) -> None:
    if b"wait:%d" % step.index in fields:
        step.state = "waits"
        return
    at, shift = step.index // 4, 6 - 2 * (step.index % 4)
    step.state = _STATES[bits[at] >> shift & 3 if at < len(bits) else 0]
    end = read_end(fields.get(b"end:%d" % step.index))
    if end is not None and step.state != "started":
        step.outcome, step.ended_at, step.job = end.outcome, end.at, end.job
    if step.state == "otherwise" and step.outcome in ("", "cancelled"):
        step.state = "cancelled"


def _add_edge(before: StepReport, step: StepReport | None, how: OnFailure) -> None:
    if step is None:
        return
    step.after[before.name] = how
    is_met = before.state == "done" or (how == "run" and before.state not in ("waits", "started"))
    if step.state == "waits" and not is_met:
        step.waits_for.append(before.name)


def _ordered(steps: Sequence[StepReport]) -> list[StepReport]:
    """The steps, each behind those that it comes after."""
    behind: dict[str, list[StepReport]] = {step.name: [] for step in steps}
    for step in steps:
        for name in step.after:
            behind[name].append(step)
    left = {step.name: len(step.after) for step in steps}
    found = [step for step in steps if not step.after]
    for before in found:  # which grows
        for step in behind[before.name]:
            left[step.name] -= 1
            if not left[step.name]:
                found.append(step)
    return found
