"""A flow, as the app makes one. docs/internals.md, "The way of a flow"."""

from __future__ import annotations

import warnings
from asyncio import _get_running_loop
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from ..batches.batch import home_of, run_again, server_at, waits_for_commit
from ..batches.block import block
from ..batches.callbacks import (
    NOT_GIVEN,
    await_results,
    checked,
    checked_ways,
    made_fields,
    shard_for,
)
from ..client import transactions
from ..current_job import job_for
from ..default_client import adefault, default
from ..errors import (
    BatchFinished,
    BlockingPushWarning,
    ForkqError,
    InvalidJob,
    callers_level,
    shown,
)
from ..features.batch.parts import DEEPEST, EVENTS, new_bid, place_in
from ..features.flow.parts import MOST, OnFailure
from ..store.loop.in_thread import in_thread
from ..store.scripts import FLOW_GRAFT, FLOW_PUSH
from ..wire.marks import KEY, needs_in
from ..wire.payload import DEFAULT_QUEUE
from ..wire.prepared import PreparedJob, StepResult, Steps
from .changes import cancel_flow
from .encoding import EncodedStep, Home, encoded, firsts, grafted, names_only, pages
from .graph import Graph, edges_of
from .waiting import astep_result, refuse_deadlock, step_result

if TYPE_CHECKING:
    from ..batches.batch import Batch
    from ..client import Client
    from ..servers import Server


class Flow:
    """Steps that start once those before them have ended::

        flow = forkq.Flow("report")
        flow.add("download", download.s(url))
        flow.add("resize", resize.s(flow.result("download"), 200), after=["download"])
        flow.push()

    ``steps``: a short form of the same, as in ``forkq.Flow("report", a.s(1) | b.s(2))``.
    ``on_success``, ``on_finish``, ``on_death`` and ``ignore`` are those of a ``forkq.Batch``: a
    flow is a batch whose members are its steps.
    """

    def __init__(
        self,
        name: str = "",
        steps: Steps | None = None,
        *,
        on_success: PreparedJob = NOT_GIVEN,
        on_finish: PreparedJob = NOT_GIVEN,
        on_death: PreparedJob = NOT_GIVEN,
        ignore: Sequence[str] = (),
    ) -> None:
        if not isinstance(name, str):
            raise InvalidJob(f"Flow(): the name is {shown(name)}; pass a text, then the steps")
        self.bid = new_bid()
        self.name = name
        given = {"success": on_success, "finish": on_finish, "death": on_death}
        self._callbacks = {event: checked(event, given[event]) for event in EVENTS}
        self._ignore = checked_ways(ignore)
        self._graph = Graph()
        self._pushed: dict[str, EncodedStep] = {}
        self._server: Server | None = None
        self._above: tuple[str, ...] = ()
        self._by: int | None = None  # the index of the step that adds more of them
        if steps is not None:
            self._graph.add_all(steps)

    def __repr__(self) -> str:
        return f"<forkq flow {self.bid} {self.name!r}>"

    def add(
        self,
        name: str,
        job: PreparedJob,
        *,
        after: Sequence[str] = (),
        on_failure: OnFailure | Mapping[str, OnFailure] = "wait",
    ) -> str:
        """Adds a step, which starts once all steps called ``after`` have ended well. Returns its
        name. ``on_failure`` says what happens if one of these ends badly: "wait" (a person may
        retry a dead one; behind any other end this step ends as cancelled), "cancel" (it ends so
        behind a dead one, too) or "run" (it starts all the same); by the name of the step before,
        if not all of them mean the same.

        Raises InvalidJob for a name that is taken, and for a job that can be no step."""
        if self._pushed:
            raise ForkqError(f"{self!r} was pushed: make a new flow")
        self._graph.add(name, job, edges_of(name, after, on_failure))
        return name

    def result(self, name: str) -> Any:
        """In the arguments of a step: what the step called ``name`` has returned, as JSON has it.
        The child that runs the step reads it. None if that one has ended badly."""
        return StepResult(name)

    def push(self) -> str:
        """Pushes all steps, or none: those start that come after no other one. Returns the id of
        the flow (``bid``). After ServerUnavailable it may be called again: nothing starts twice.
        Raises what a push raises, and InvalidJob for a circle and for a name that no step has."""
        _warn_in_loop("flow.apush()")
        self._prepare(default())
        self._send()
        return self.bid

    async def apush(self) -> str:
        """``push``, awaited by an event loop."""
        client = await adefault()
        self._prepare(client)
        if waits_for_commit():
            self._send()
        else:
            await in_thread(self._send_all)
        return self.bid

    def get(self, name: str, timeout: float | None = None) -> Any:
        """What the step called ``name`` has returned, as JSON has it, once it is done. Waits up to
        ``timeout`` seconds for that. Raises what ``forkq.result`` raises."""
        _warn_in_loop("flow.aget(...)")
        self._refuse_deadlock(name)
        return step_result(self.bid, name, timeout)

    async def aget(self, name: str, timeout: float | None = None) -> Any:
        """``get``, awaited by an event loop."""
        self._refuse_deadlock(name)
        return await astep_result(self.bid, name, timeout)

    @classmethod
    def current(cls) -> Flow:
        """The flow of which the running job is a step: it takes more steps, until this job has
        ended. They may come after steps that are there, also after this one; what is there comes
        after none of them. A name that this very step has added in an earlier run is that step:
        so a second run changes nothing. Raises ForkqError in any other job."""
        job = job_for("forkq.Flow.current()")
        place = place_in(needs_in(job.payload.get(KEY)))
        if place is None or not place.step:
            raise ForkqError("there is no current flow: this job is no step of one")
        made = cls()
        made.bid, made._above, made._by = place.bid, place.above, place.member
        made._server = server_at(place.at, job.queue)
        return made

    def cancel(self) -> None:
        """Cancels it: no step starts any more, and those that wait in their queues or run end as by
        ``forkq.cancel``. Any other process has ``forkq.api.Flow(bid)``."""
        if self._server is None:
            raise ForkqError(f"{self!r} was not pushed")
        cancel_flow(self._server, self.bid, self._above)

    def _refuse_deadlock(self, name: str) -> None:
        if self._server is None:
            raise ForkqError(f"{self!r} was not pushed: none of its steps will ever run")
        refuse_deadlock(name, {each.queue for each in self._pushed.values()})

    def _prepare(self, client: Client) -> None:
        """Checks and encodes the flow, once: so what is sent again is the same. Raises
        InvalidJob."""
        if self._pushed:
            return
        if self._by is not None:
            self._prepare_grafts(client)
        else:
            self._prepare_all(client)

    def _prepare_all(self, client: Client) -> None:
        if not self._graph.steps:
            raise InvalidJob(f"{self!r} has no step: add one before it is pushed")
        outer, above, via = block.get(), tuple[str, ...](), None
        if outer is not None:
            above, via = _within(outer)
        queues = self._queues()
        home = (None if outer is None else outer._server) or home_of(queues)
        steps = encoded(client, self._graph, Home(self.bid, above, home))
        self._server, self._above, self._via = home, above, "" if via is None else via
        given = (self.name, self._callbacks, self._ignore)
        in_batch, home_for = (self.bid, above), partial(shard_for, home)
        fields, self._called = made_fields(client, in_batch, *given, home_for)
        away = ("away", 1) if any(each.is_away for each in steps.values()) else ()
        self._fields = [*fields, "flow", len(steps), *away]
        self._pushed = steps
        if client.pushed_to is not None:
            client.pushed_to(sorted({*queues, *(each.queue for each in steps.values())}))

    def _queues(self) -> list[str]:
        """The queues of all steps and callbacks, those of the steps first."""
        calls = [each for each in self._callbacks.values() if each is not None]
        jobs = (*(step.job for step in self._graph.steps.values()), *calls)
        return [*dict.fromkeys(job.payload.get("queue", DEFAULT_QUEUE) for job in jobs)]

    def _prepare_grafts(self, client: Client) -> None:
        assert self._server is not None
        steps = grafted(client, self._graph, Home(self.bid, self._above, self._server))
        self._pushed = {one.arguments[0]: one for one in steps}

    def _send(self) -> None:
        """Pushes the flow now, or with the pushes that wait for a commit."""
        if waits_for_commit():
            assert transactions.on_commit is not None
            transactions.on_commit(self._send_all)
        else:
            self._send_all()

    def _send_all(self) -> None:
        if self._by is not None:
            self._graft()
            return
        await_results(self._called)
        left = [*pages(sorted(self._pushed.values(), key=lambda each: each.arguments[0]))]
        for page in left:
            is_last = page is left[-1]
            total, first = (len(self._pushed), firsts(self._graph)) if is_last else ("", "")
            self._run(total, first, page)

    def _graft(self) -> None:
        """Adds steps to the flow, some hundred at a time. Raises InvalidJob, and adds none, for a
        name that is not there, or that another step has added before, and for more steps than a
        flow may have."""
        parts = [*pages([*self._pushed.values()])]
        if len(parts) > 1:
            self._send_grafts("look", names_only([*self._pushed.values()]))
        for part in parts:
            self._send_grafts("add", [each.arguments for each in part])
        self._graph, self._pushed = Graph(), {}

    def _send_grafts(self, what: str, steps: Iterable[Sequence[Any]]) -> None:
        assert self._server is not None
        keys = self._server.keys.of_flow(self.bid, self._above)
        arguments = (1 + len(self._above), self._by, MOST, what, *chain.from_iterable(steps))
        said = run_again(self._server, FLOW_GRAFT, keys, arguments)
        if said != 1:
            raise _not_added(*(text.decode("utf-8", "replace") for text in said))

    def _run(self, total: int | str, first: str, page: Sequence[EncodedStep]) -> None:
        """Sends one part; each may be sent again after a lost reply. Raises ServerUnavailable, and
        BatchFinished for a flow that was cancelled meanwhile."""
        assert self._server is not None
        keys = self._server.keys.of_flow(self.bid, self._above)
        head = (1 + len(self._above), self._via, total, first, len(self._fields), *self._fields)
        arguments = (*head, *chain.from_iterable(each.arguments for each in page))
        if run_again(self._server, FLOW_PUSH, keys, arguments) == b"cancelled":
            raise BatchFinished(f"{self!r} was cancelled: no step of it starts")


def _warn_in_loop(instead: str) -> None:
    """Tells the caller that it holds up the event loop in which it runs."""
    if _get_running_loop() is not None:
        text = f"this holds up the event loop until Redis has answered: write `await {instead}`"
        warnings.warn(text, BlockingPushWarning, callers_level())


def _not_added(why: str, name: str) -> InvalidJob:
    said = {
        "double": f"the flow has a step {shown(name)} already, and this step has not added it",
        "unknown": f"a step comes after {shown(name)}, and the flow has no such step",
        "many": f"a flow has {MOST:,} steps at most: {shown(name)} is one more",
    }
    return InvalidJob(said[why])


def _within(outer: Batch) -> tuple[tuple[str, ...], int | None]:
    """The batches above a flow that is pushed in the block of this one, and the member that pushes
    it. Raises InvalidJob if they are too many."""
    above = (outer.bid, *outer._above)
    if len(above) >= DEEPEST:
        raise InvalidJob(f"batches may be nested {DEEPEST} deep; make this flow outside")
    return above, outer._via
