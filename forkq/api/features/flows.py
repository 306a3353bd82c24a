"""Flows, looked at and acted on from any process."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, TypeAlias

import msgspec

from ...errors import ForkqError
from ...features.flow.parts import OnFailure, field_of_end, read_end
from ...flows.encoding import LETTERS
from ...flows.waiting import astep_result, step_result
from ...servers import Server
from .batches import BatchEntry, FlowReport, reports
from .results import JobResult, shown_result

_MOST_NAMED: Final = 3  # dead steps that one step names
# "waits": for steps before it; "started": it waits in its queue, runs, or is retried.
StepState: TypeAlias = Literal["waits", "started", "done", "dead", "otherwise", "cancelled"]

_SAID: Final[Mapping[str, OnFailure]] = {letter: how for how, letter in LETTERS.items()}
_STATES: Final[tuple[StepState, ...]] = ("started", "done", "dead", "otherwise")
_EDGE: Final = re.compile(r"(\d+)([a-z])")
_AT_ONCE: Final = 1000  # fields of one command: the server answers others in between


@dataclass(slots=True)
class StepReport:
    """A step of a flow as it was when it was read. ``state``: "waits" for steps before it,
    "started" (it waits in its queue, runs, or is retried), "done", "dead", "otherwise" (it was
    dropped, discarded or deleted, or has expired: ``outcome``), or "cancelled". ``after``: the
    steps before it, each with what a bad end of that one means. ``waits_for``: those of them that
    keep it from starting; ``held_by``: the first three dead steps without which it cannot start,
    also over others that wait. ``ended_at``: epoch seconds, 0 if it has not ended. ``job``: its
    class, once it has ended. ``jid``: that of its job, if it is dead, or has failed and is retried;
    of the first 1,000 of each. ``is_retried``: it has failed, and will be tried again.
    """

    name: str
    index: int
    state: StepState
    after: dict[str, OnFailure] = field(default_factory=dict)
    waits_for: list[str] = field(default_factory=list)
    held_by: list[str] = field(default_factory=list)
    outcome: str = ""
    ended_at: float = 0.0
    job: str = ""
    jid: str = ""
    is_retried: bool = False


class _EndOfStep(msgspec.Struct, frozen=True, rename={"job": "class"}):
    """How a step has ended, without what it has returned."""

    outcome: str = ""
    job: str = ""
    at: float = 0.0


_decoder: Final = msgspec.json.Decoder(_EndOfStep)


class FlowEntry(BatchEntry):
    """The flow of that id, to look at and to act on: ``forkq.api.Flow(bid)``. It has all of a
    ``forkq.api.Batch``. Each call asks Redis, and raises ForkqError if there is no such flow (any
    more), and ServerUnavailable."""

    _noun: ClassVar[str] = "flow"
    _command: ClassVar[str] = "forkq flows"

    def report(self) -> FlowReport:
        """How far it has come. Raises ForkqError for a batch that is no flow."""
        return self._flow()[1]

    def steps(self) -> list[StepReport]:
        """Returns the steps of the flow, each behind those that it comes after."""
        server, _ = self._flow()
        keys = server.keys
        key, bits = keys.flow_steps(self.bid), keys.batch_ends(self.bid)
        names = _names(server, key)
        fields = _fields(server, key, names.values())
        ends, batch = server.ask_leniently(("GET", bits), ("HGETALL", keys.batch(self.bid)))
        found = _ordered(_steps(names, fields, ends or b"", batch or {}))
        _note_what_holds(found)
        return found

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


def step_end(server: Server, bid: str, step: StepReport) -> JobResult | None:
    """What a step of a flow has returned, or why it has not, with secrets masked; None if it has
    not ended. Raises ServerUnavailable."""
    field = field_of_end(step.index)
    [raw] = server.ask_leniently(("HGET", server.keys.flow_steps(bid), field))
    found = read_end(raw)
    return None if found is None else shown_result(server, step.jid, found, 0.0)


def flows(where: Server | Iterable[Server] | None = None) -> list[FlowReport]:
    """All flows, the one that changed last first. Raises ServerUnavailable."""
    return [report for report in reports(where) if isinstance(report, FlowReport)]


def _names(server: Server, key: str) -> dict[str, int]:
    """The names of all steps, and their indices: by calls that are short, however large the flow
    is."""
    cursor, found = b"0", dict[str, int]()
    while True:
        [reply] = server.ask_leniently(("HSCAN", key, cursor, "MATCH", "of:*", "COUNT", _AT_ONCE))
        if reply is None:
            return {}
        cursor, flat = reply
        pairs = zip(flat[::2], flat[1::2], strict=True)
        known = ((name, at) for name, at in pairs if at.isdigit())
        found.update((name[3:].decode("utf-8", "replace"), int(at)) for name, at in known)
        if cursor == b"0":
            return found


def _fields(server: Server, key: str, indices: Iterable[int]) -> dict[bytes, bytes]:
    """The fields of flow.lua that say what the steps are, and how they have ended: without the
    payloads of those that wait."""
    wanted = [b"%b:%d" % (kind, at) for at in indices for kind in (b"wait", b"next", b"end")]
    found = dict[bytes, bytes]()
    for at in range(0, len(wanted), _AT_ONCE):
        page = wanted[at : at + _AT_ONCE]
        [values] = server.ask_leniently(("HMGET", key, *page))
        pairs = zip(page, values or (), strict=False)
        found.update((name, value) for name, value in pairs if value is not None)
    return found


def _steps(
    names: Mapping[str, int],
    fields: Mapping[bytes, bytes],
    bits: bytes,
    batch: Mapping[bytes, bytes],
) -> list[StepReport]:
    """The steps that these fields of flow.lua are about, by their indices. ``batch``: what the hash
    of the batch has."""
    found = {index: StepReport(name, index, "started") for name, index in names.items()}
    for index, step in found.items():
        failing, dead = (batch.get(b"%b:%d" % (kind, index)) for kind in (b"failing", b"dead"))
        step.jid = _text(failing or dead)
        step.is_retried = failing is not None
        if b"wait:%d" % index in fields:
            step.state = "waits"
        else:
            _note_state(step, bits, fields.get(b"end:%d" % index))
    for index, step in sorted(found.items()):
        for number, letter in _EDGE.findall(_text(fields.get(b"next:%d" % index))):
            _add_edge(step, found.get(int(number)), _SAID.get(letter, "wait"))
    return [found[index] for index in sorted(found)]


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def _note_state(step: StepReport, bits: bytes, end: bytes | None) -> None:
    """Notes what has become of a step that does not wait for others."""
    at, shift = step.index // 4, 6 - 2 * (step.index % 4)
    step.state = _STATES[bits[at] >> shift & 3 if at < len(bits) else 0]
    if end is not None and step.state != "started":
        _note_end(step, end)
    if step.state == "otherwise" and step.outcome in ("", "cancelled"):
        step.state = "cancelled"


def _note_end(step: StepReport, end: bytes) -> None:
    try:
        found = _decoder.decode(end)
    except (
        msgspec.MsgspecError,
        RecursionError,
        UnicodeDecodeError,
    ):  # another program has written it
        return
    step.outcome, step.ended_at, step.job = found.outcome, found.at, found.job


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


def _note_what_holds(steps: Sequence[StepReport]) -> None:
    """Notes which dead steps hold up those that wait. ``steps``: each behind those before it."""
    known = {step.name: step for step in steps}
    for step in steps:
        for before in (known[name] for name in step.waits_for):
            dead = [before.name] if before.state == "dead" else before.held_by
            step.held_by += [name for name in dead if name not in step.held_by]
            if len(step.held_by) >= _MOST_NAMED:
                del step.held_by[_MOST_NAMED:]
                break
