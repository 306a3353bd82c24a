"""A batch, as the app makes one. docs/internals.md, "The way of a batch"."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from contextvars import Token
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from ..client import transactions
from ..current_job import job_for
from ..default_client import adefault, default
from ..errors import ForkqError, InvalidJob, ServerRefused, ServerUnavailable
from ..features.batch.parts import DEEPEST, EVENTS, PushedInto, joined, new_bid, place_in
from ..store.loop.in_thread import in_thread
from ..store.scripts import BATCH_CHANGE
from ..wire.marks import KEY, needs_in
from ..wire.payload import DEFAULT_QUEUE
from ..wire.prepared import PreparedJob
from .block import block, joins
from .callbacks import (
    NOT_GIVEN,
    await_results,
    checked,
    checked_name,
    checked_ways,
    made_fields,
    shard_for,
)

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..client import Client
    from ..servers import Server
    from ..store.scripts import Script

_log: Final = logging.getLogger("forkq")
# So many rows are pushed at a time: four batches, which are under way together.
_ROWS: Final = 4000
# In an event loop, which encodes them without a pause: some milliseconds.
_ROWS_AWAITED: Final = 1000


class Batch:
    """Jobs that belong together. What is pushed in its block is a member::

        with forkq.Batch("import", on_success=report.s(7)) as batch:
            batch.perform_bulk(load, rows)

    When none of its members will run any more, ``on_finish`` is pushed; when all are done,
    ``on_success``; at the first that is dead, ``on_death``. Each is pushed once. ``ignore``: ways
    in which a member may end in spite of a success ("expired", "cancelled", "discarded", "dropped",
    "deleted"). A batch that is made in the block of another one is a member of that.
    """

    def __init__(
        self,
        name: str = "",
        *,
        on_success: PreparedJob = NOT_GIVEN,
        on_finish: PreparedJob = NOT_GIVEN,
        on_death: PreparedJob = NOT_GIVEN,
        ignore: Sequence[str] = (),
    ) -> None:
        self.bid = new_bid()
        self.name = checked_name(name)
        given = {"success": on_success, "finish": on_finish, "death": on_death}
        self._callbacks = {event: checked(event, given[event]) for event in EVENTS}
        self._ignore = checked_ways(ignore)
        self._above: tuple[str, ...] = ()
        self._via: int | None = None  # the member that pushes more of them; None: a block does
        self._is_new = True
        self._server: Server | None = None
        self._token: Token[Batch | None] | None = None

    def __repr__(self) -> str:
        return f"<forkq batch {self.bid} {self.name!r}>"

    @classmethod
    def current(cls) -> Batch:
        """The batch of which the running job is a member: ``with forkq.Batch.current():`` pushes
        more members, as long as that job has not ended. Raises ForkqError in any other job."""
        job = job_for("forkq.Batch.current()")
        place = place_in(needs_in(job.payload.get(KEY)))
        if place is None or place.member is None:  # a callback is no member
            raise ForkqError("there is no current batch: this job is no member of one")
        if place.step:
            raise ForkqError("this job is a step of a flow, which takes steps alone: no batch")
        made = cls()
        made.bid, made._above, made._via = place.bid, place.above, place.member
        made._is_new = False
        made._server = server_at(place.at, job.queue)
        return made

    def perform_bulk(self, job: Any, rows: Iterable[Any]) -> int:
        """Pushes a member for each row of arguments, some thousand at a time: so a generator of
        any length takes no memory. Returns how many members there are more. What ``perform_bulk``
        raises, this raises; the rows before are members then."""
        self._check_open()
        given, count = iter(rows), 0
        while page := [*islice(given, _ROWS)]:
            count += sum(map(bool, job.perform_bulk(page)))
        return count

    async def aperform_bulk(self, job: Any, rows: Iterable[Any] | AsyncIterable[Any]) -> int:
        """``perform_bulk``, awaited. The rows may come from an asynchronous generator."""
        self._check_open()
        count, page = 0, list[Any]()
        async for row in _each(rows):
            page.append(row)
            if len(page) == _ROWS_AWAITED:
                count, page = count + sum(map(bool, await job.aperform_bulk(page))), []
        return count + (sum(map(bool, await job.aperform_bulk(page))) if page else 0)

    def __enter__(self) -> Self:
        self._begin(default())
        self._send(self._make if self._is_new else None)
        self._token = block.set(self)
        joins.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._leave()
        self._send(self._ending(error))

    async def __aenter__(self) -> Self:
        client = await adefault()
        await in_thread(lambda: self._begin(client))
        await self._asend(self._make if self._is_new else None)
        self._token = block.set(self)
        joins.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._leave()
        await self._asend(self._ending(error))

    def _begin(self, client: Client) -> None:
        """Finds where the batch belongs, and prepares its callbacks. Raises InvalidJob."""
        if self._token is not None:
            raise ForkqError(f"the block of {self!r} was entered before; make a new batch")
        if not self._is_new:
            return
        outer = block.get()
        if outer is not None:
            self._above, self._via = (outer.bid, *outer._above), outer._via
            if len(self._above) >= DEEPEST:
                raise InvalidJob(f"batches may be nested {DEEPEST} deep; make this one outside")
        elif self._ignore and self._callbacks["success"] is None:
            raise ForkqError("ignore keeps ends from on_success alone: give on_success, too")
        prepared = filter(None, self._callbacks.values())
        queues = [each.payload.get("queue", DEFAULT_QUEUE) for each in prepared]
        around = None if outer is None else outer._server
        self._server = around or home_of(queues)
        place = (self.bid, self._above)
        given = (self.name, self._callbacks, self._ignore)
        self._fields, self._called = made_fields(client, place, *given, self._home_for)
        if client.pushed_to is not None:
            client.pushed_to(queues)

    def _make(self) -> None:
        await_results(self._called)
        via = "" if self._via is None else self._via
        self._change("open", via, *self._fields)

    def _leave(self) -> None:
        assert self._token is not None
        block.reset(self._token)
        joins.end()

    def _ending(self, error: BaseException | None) -> Callable[[], None] | None:
        """What ends the block."""
        if not self._is_new:
            return None
        return self._seal if error is None else self._break

    def _seal(self) -> None:
        if not self._change("seal"):
            raise ForkqError(f"{self!r} is not in Redis any more: it has lost data")

    def _break(self) -> None:
        try:
            state = self._change("break")
        except ServerUnavailable as error:
            _log.warning("%r stays open, and fires no callback: %s", self, error)
            return
        if state == b"broken":  # and not sealed or cancelled by a person meanwhile
            _log.warning(
                "%r is broken: its block has raised an error; `forkq batches seal %s` ends it",
                self,
                self.bid,
            )

    def _change(self, *arguments: Any) -> bytes:
        """Makes or changes the batch; each change may be repeated after a lost reply. Returns the
        state that the batch has now. Raises ServerUnavailable."""
        assert self._server is not None
        keys = self._server.keys.of_batch(self.bid, self._above)
        given = (1 + len(self._above), *arguments)
        state: bytes = run_again(self._server, BATCH_CHANGE, keys, given)
        return state

    def _send(self, change: Callable[[], None] | None) -> None:
        """Changes the batch now, or with the pushes that wait for a commit."""
        if change is None:
            return
        if not waits_for_commit():
            change()
        elif change != self._break:
            assert transactions.on_commit is not None
            transactions.on_commit(change)

    async def _asend(self, change: Callable[[], None] | None) -> None:
        if change is not None and waits_for_commit():
            self._send(change)
        elif change is not None:
            await in_thread(change)

    def _check_open(self) -> None:
        if block.get() is not self:
            raise ForkqError(f"{self!r} takes members in its block alone: write `with` around it")

    def needs_of_member(self, queue: str) -> dict[str, Any]:
        """What stands in the needs of a member that is pushed to this queue."""
        into = PushedInto(self.bid, self._via, self._home_for(queue))
        return joined(into, self._above)

    def _home_for(self, queue: str) -> str:
        """The shard of the batch, if jobs of that queue may be on another one; else ""."""
        return "" if self._server is None else shard_for(self._server, queue)


def home_of(queues: Sequence[str]) -> Server:
    """The server of a batch whose callbacks go to these queues: that of the first one which is on
    one shard, or the default one."""
    servers = default().servers
    parts = [servers.parts_of(queue) for queue in queues] if servers.names else []
    return next((found[0] for found in parts if len(found) == 1), servers.default)


def server_at(shard: str, queue: str) -> Server:
    """The server of the batch of a running member: that of its needs, or of its queue."""
    servers = default().servers
    if shard:
        return servers[shard]
    return servers.parts_of(queue)[0] if servers.names else servers.default


def run_again(server: Server, script: Script, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
    """The reply of a script that may be called again: if it is lost, it is."""
    try:
        return server.run(script, keys, arguments)
    except ServerRefused:
        raise
    except ServerUnavailable:
        return server.run(script, keys, arguments)


def waits_for_commit() -> bool:
    """Whether pushes of this thread wait for the commit of its transaction."""
    if transactions.on_commit is None:
        return False
    return transactions.all_wait or bool(transactions.held and transactions.held())


async def _each(rows: Iterable[Any] | AsyncIterable[Any]) -> Any:
    if isinstance(rows, AsyncIterable):
        async for row in rows:
            yield row
    else:
        for row in rows:
            yield row
