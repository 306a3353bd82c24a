"""Pushing jobs. Any process: this module and what it imports must stay light.

The first push imports redis-py, which is not light (store/route.py, docs/decisions/006).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec.structs import replace

from . import middleware, registry
from .errors import ConfigError, ForkqError, note_nothing_pushed
from .store.route import Access, EncodedJob, Route, Wait, note_replicated
from .wire.bulk import in_row, jids_of, next_turn, row_encoder, rows_of
from .wire.defaults import UNSHARED, set_time, with_defaults
from .wire.keys import Keys
from .wire.payload import (
    KEY,
    MAX_NESTING,
    MAX_SIZE,
    Payload,
    PayloadBounds,
    new_jid,
    new_jids,
)
from .wire.redis_url import EMBEDDED, check_prefix, checked_url
from .wire.times import now
from .wire.validation import StrictArgs, check_args, check_jid

if TYPE_CHECKING:
    from .features.marked import MarksPlan
    from .limits.rules import Rulebook
    from .servers import Server, Servers
    from .store.connection import RedisConnection
    from .wire.password_source import PasswordSource


_log: Final = logging.getLogger("forkq")
# So many rows of a bulk push are encoded in one turn of an event loop: that takes about 1 ms.
_IN_ONE_TURN: Final = 100


class Transactions:
    """How pushes wait for the database: an integration (forkq.contrib.django) sets it.

    ``on_commit`` calls a function when the transaction of this thread is committed, never if it is
    rolled back, and at once outside of one. ``all_wait``: every push waits so. ``held`` says which
    pushes wait now, for a test that misses a job; "" if none does.
    """

    on_commit: Callable[[Callable[[], None]], None] | None = None
    held: Callable[[], str] | None = None
    all_wait = False


transactions: Final = Transactions()


# What all pushes of one job class share: the payload with its defaults, and what its marks become.
Template: TypeAlias = "tuple[Payload, MarksPlan | None]"


class Client:
    """Pushes jobs to one Redis. Thread-safe, and safe to use on both sides of a fork.

    Job classes push with the one of ``default_client.py``. It pushes no payload of more than
    ``max_payload_size`` bytes of JSON, or of more than ``max_nesting`` levels. A password that the
    URL does not have is read from ``password_source`` at each connect. A push waits for ``wait``
    replicas, for ``wait_timeout`` seconds, or for half of ``timeout`` if that is less. ``expire``:
    by queue or pattern, after how many seconds a job expires that does not say so itself.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "",
        pool: int = 10,
        timeout: float = 5.0,
        connect_timeout: float = 2.0,
        strict_args: StrictArgs = "raise",
        max_payload_size: int = MAX_SIZE,
        max_nesting: int = MAX_NESTING,
        rules: Rulebook | None = None,
        password_source: PasswordSource | None = None,
        wait: int = 0,
        wait_timeout: float = 0.1,
        expire: Mapping[str, float] | None = None,
    ) -> None:
        if url == EMBEDDED:
            raise ConfigError('for the embedded server call forkq.configure("embedded")')
        self.keys = Keys(prefix)
        self._strict = strict_args
        self._bounds = PayloadBounds(max_payload_size, max_nesting)
        self._rules = rules
        # Told of the queues of each push that Redis has taken.
        self.pushed_to: Callable[[Iterable[str]], None] | None = None
        check_prefix(checked_url(url), prefix)
        access = Access(url, prefix, timeout, connect_timeout, password_source)
        self._route = Route(access, self.keys, pool)
        self.routes = [self._route]  # to all servers that jobs are pushed to
        self._servers: Servers | None = None
        self._expire = expire
        self._wait = wait
        self._wait_limit = max(1, math.ceil(min(wait_timeout, timeout / 2) * 1000))  # 0 is for ever

    @property
    def servers(self) -> Servers:
        """What ``forkq.api`` reads and changes: the Redis to which this client pushes."""
        if self._servers is None:
            self._servers = self._made_servers()
        return self._servers

    @middleware.around_push
    def push(self, job: Payload) -> str | None:
        """Pushes ``{"class": ..., "args": [...], ...}`` and returns its jid.

        ``at`` (see times.Moment) schedules it. Returns None if a middleware vetoed it. Raises
        InvalidJob for a job that could never run, ServerUnavailable if Redis cannot be reached (the
        text says whether the job may be in Redis), or ServerRefused if Redis refuses the push.
        """
        return self._deliver(with_defaults(job))

    def push_args(self, template: Template, args: list[Any]) -> str | None:
        """``push`` of a job with these arguments. What all pushes of a job class share is in
        ``template``, and checked once."""
        shared, plan = template
        if middleware.pushes.members:
            return self.push(_given(shared, args))
        job = shared.copy()
        job["args"] = args
        return self._deliver(job, plan)

    def push_on_commit(self, job: Payload) -> str | None:
        """Pushes a job when the database transaction of this thread is committed; never if it is
        rolled back, and at once outside of one. Needs an integration (forkq.contrib.django).

        The job is checked and encoded now. What the push raises then, the commit raises.
        """
        return self.push_later(job, _on_commit)

    @middleware.around_push
    def push_later(self, job: Payload, wait: Callable[[Callable[[], None]], object]) -> str | None:
        """Checks and encodes ``job`` now, and gives ``wait`` a function that pushes it. Returns the
        jid, or None if a middleware vetoed the push."""
        encoded = self._encoded(with_defaults(job))
        if encoded is not None:
            wait(lambda: self._write_later([encoded]))
        return None if encoded is None else encoded.jid

    @middleware.around_push
    def push_bulk(self, job: Payload) -> list[str]:
        """Pushes one job per element of ``args``, a list of argument lists, in batches of 1,000.

        ``at`` may be one moment for all, or a list with one for each; ``jid`` is such a list, if it
        is given. Returns the jids of those that no middleware vetoed, with "" for a duplicate of a
        unique job. Everything is
        validated and encoded before anything is written. If Redis fails meanwhile, this raises
        ServerUnavailable with the jids of the jobs that are in Redis (``pushed``) and of those
        that may be (``unknown``).
        """
        kept = self._bulk(job)
        duplicates = self._release(kept)
        return _settled(kept, duplicates) if duplicates else _jids(kept)

    @middleware.around_awaited_push
    async def apush(self, job: Payload) -> str | None:
        """``push``, awaited by an event loop of asyncio, which it never holds up. One connection
        takes all pushes of a loop. Raises what ``push`` raises.

        A push that is cancelled raises CancelledError, and ``forkq.push_outcome(error)`` says
        whether the job may be in Redis."""
        ready: list[EncodedJob] = []

        def encode() -> str | None:
            encoded = self._encoded(with_defaults(job))
            if encoded is not None:
                ready.append(encoded)
            return None if encoded is None else encoded.jid

        jid: str | None = middleware.around_encoding(job, encode)
        duplicates = await self._arelease(ready)
        return _settled(ready, duplicates)[0] if duplicates else jid

    async def apush_args(self, template: Template, args: list[Any]) -> str | None:
        """``push_args``, awaited as ``apush``."""
        shared, plan = template
        if middleware.pushes.members:
            return await self.apush(_given(shared, args))
        job = shared.copy()
        job["args"] = args
        encoded = self._encoded(job, plan)
        if encoded is None:
            return None
        duplicates = await self._arelease((encoded,))
        return _settled((encoded,), duplicates)[0] if duplicates else encoded.jid

    @middleware.around_awaited_push
    async def apush_bulk(self, job: Payload) -> list[str]:
        """``push_bulk``, awaited as ``apush``. After a cancellation ``forkq.push_outcome(error)``
        has the jids of the jobs that are in Redis, and of those that may be."""
        ready: list[EncodedJob] = []

        def encode() -> list[str]:
            ready.extend(self._bulk(job))
            return _jids(ready)

        if middleware.pushes.with_call():
            middleware.around_encoding(job, encode)
        else:
            ready = await self._abulk(job)
        duplicates = await self._arelease(ready)
        return _settled(ready, duplicates) if duplicates else _jids(ready)

    def connection(self) -> AbstractContextManager[RedisConnection]:
        """A connected RedisConnection, for code that reads or changes Redis, as ``forkq.api`` does.

        Raises ServerUnavailable if Redis cannot be reached or refuses what is asked within.
        """
        return self._route.channel().connection()

    def close(self) -> None:
        """Closes the idle connections; those of event loops when their pushes are over."""
        self._route.close()

    async def aclose(self) -> None:
        """Awaits the pushes of this event loop that are under way, and closes its connections. A
        later push opens new ones."""
        await self._route.aclose()

    def _made_servers(self) -> Servers:
        from .servers import Servers  # noqa: PLC0415 - a push needs none

        return Servers([self._server(self.connection, self.keys)])

    def _server(
        self,
        connection: Callable[[], AbstractContextManager[RedisConnection]],
        keys: Keys,
        **named: Any,
    ) -> Server:
        from .limits.rules import Rulebook  # noqa: PLC0415 - a push needs none
        from .servers import Server  # noqa: PLC0415

        rules = self._rules or Rulebook()
        return Server(connection, keys, self._bounds, rules, self.push, **named)

    def _deliver(self, job: Payload, plan: MarksPlan | None = None) -> str | None:
        """Pushes ``job``, which has its defaults, or has it wait for the commit. Returns its jid;
        None if the middleware vetoed it."""
        encoded = self._encoded(job, plan)
        if encoded is None:
            return None
        duplicates = self._release((encoded,))
        return _settled((encoded,), duplicates)[0] if duplicates else encoded.jid

    def _encoded(self, job: Payload, plan: MarksPlan | None = None) -> EncodedJob | None:
        """The EncodedJob of ``job``, which has its defaults, after the client middleware; None if
        the middleware vetoed it. The caller must not use ``job`` afterwards. ``plan`` counts only
        as long as nothing has changed the job's marks."""
        stamp = self._complete(job)
        if middleware.client.members:
            changed = middleware.through_client(job)
            if changed is None:
                return None
            job, stamp = changed, self._complete(changed)
        at = job.pop("at", None)
        if at is None:
            job["enqueued_at"] = stamp
        wait = job.pop("wait") if "wait" in job else self._wait
        if self._expire:
            _add_expiry(job, self._expire)
        if KEY not in job:
            return EncodedJob(job["jid"], job["queue"], at, self._bounds.dumps(job), wait)
        if plan is None or not plan.fits(job[KEY], at):
            plan = plan_of(job, at)
        completed = plan.complete(job)
        payload = self._bounds.dumps(job)
        return EncodedJob(job["jid"], job["queue"], at, payload, wait, *completed)

    def _complete(self, job: Payload) -> float:
        """Checks the arguments, and adds what no two jobs share. Returns the time."""
        check_args(job, self._strict)
        stamp = now()
        if job["jid"] is None:
            job["jid"] = new_jid()
        if job["created_at"] is None:
            job["created_at"] = stamp
        if "at" in job:
            set_time(job)
        return stamp

    def _bulk(self, job: Payload) -> list[EncodedJob]:
        """The jobs of a bulk push, without those that a middleware has vetoed."""
        rows = self._rows(job)
        encoded: list[EncodedJob | None] = []
        with in_row(encoded):
            encoded.extend(rows)
        return [one for one in encoded if one is not None]

    async def _abulk(self, job: Payload) -> list[EncodedJob]:
        """``_bulk`` of an event loop, which does what else is due now and then."""
        rows = self._rows(job)
        encoded: list[EncodedJob | None] = []
        try:
            with in_row(encoded):
                while some := [*islice(rows, _IN_ONE_TURN)]:
                    encoded += some
                    await next_turn()
        except BaseException as error:
            note_nothing_pushed(error)
            raise
        return [one for one in encoded if one is not None]

    def _rows(self, job: Payload) -> Iterator[EncodedJob | None]:
        """Encodes the jobs of a bulk push, one after the other; None for one that was vetoed."""
        rows, moments = rows_of(job)
        jids = jids_of(job, len(rows))
        shared = {key: value for key, value in job.items() if key != "jid"}
        base = with_defaults({**shared, "at": None, "args": []})
        if jids is None and job.get("at") is None and not middleware.client.members:
            return self._alike(base, rows)
        return self._each(base, rows, moments, jids or new_jids(len(rows)))

    def _each(
        self,
        base: Payload,
        rows: Sequence[list[Any]],
        moments: Sequence[Any],
        jids: Iterable[Any],
    ) -> Iterator[EncodedJob | None]:
        for args, at, jid in zip(rows, moments, jids, strict=True):
            check_jid(base["class"], jid)
            yield self._encoded({**base, "at": at, "args": args, "jid": jid})

    def _alike(self, job: Payload, rows: Sequence[list[Any]]) -> Iterator[EncodedJob]:
        """The encoded jobs of a bulk push in which all jobs go to the queue now and no middleware
        may change one: what they share is encoded once."""
        del job["at"]
        wait = job.pop("wait", self._wait)
        job["enqueued_at"] = stamp = now()
        job["created_at"] = job["created_at"] or stamp
        if self._expire:
            _add_expiry(job, self._expire)
        plan = plan_of(job, None) if KEY in job else None
        if plan is not None:
            plan.prepare(job)
        encode, needs = row_encoder(job, plan and plan.around), plan and plan.needs
        digest, lock = plan and plan.digest, plan.lock if plan else ""
        throttled, window = plan and plan.throttled, ""
        name, queue, bounds = job["class"], job["queue"], self._bounds
        for job["args"], jid in zip(rows, new_jids(len(rows)), strict=True):
            check_args(job, self._strict)
            if digest is not None:
                lock = digest.of(job["args"])
            if throttled is not None:
                window = throttled.of(job["args"])
            payload = encode(job["args"], jid, lock)
            bounds.check(name, payload)
            yield EncodedJob(jid, queue, None, payload, wait, needs, lock, window)

    def _release(self, jobs: Sequence[EncodedJob]) -> dict[str, str]:
        """Writes the jobs, now or when the transaction is committed. Returns the jids of those that
        are duplicates, each with that of the job that has its lock."""
        if not transactions.all_wait:
            return self._write(jobs)
        _on_commit(lambda: self._write_later(jobs))
        return {}

    def _write_later(self, jobs: Sequence[EncodedJob]) -> None:
        """Writes jobs that have waited for a commit. Their jids were returned before: so what is a
        duplicate is logged, and told to the handlers of the app."""
        sent = [_enqueued_now(job) for job in jobs]
        found = self._write(sent)
        for job in sent if found else ():
            if job.jid in found:
                registry.tell_duplicate(job.jid, job.payload, found[job.jid])

    def _write(self, jobs: Sequence[EncodedJob], route: Route | None = None) -> dict[str, str]:
        """Pushes the jobs to the server at the end of ``route``: that of this client by default.
        Returns the duplicates among them, as ``_release``."""
        channel = (route or self._route).channel()
        duplicates: dict[str, str] = {}
        if jobs and jobs[0].wait:
            answer = channel.push(jobs, Wait(jobs[0].wait, self._wait_limit), duplicates)
            note_replicated((job.jid for job in jobs), bool(answer))
        else:
            channel.push(jobs, None, duplicates)
        if self.pushed_to is not None:
            self.pushed_to([jobs[0].queue] if len(jobs) == 1 else {job.queue for job in jobs})
        return duplicates

    async def _arelease(self, jobs: Sequence[EncodedJob]) -> dict[str, str]:
        """``_release``, awaited. Where a transaction is open, the thread that commits it writes the
        jobs; else this loop does."""
        if transactions.all_wait and _is_held(lambda: self._write_later(jobs)):
            return {}
        return await self._awrite(jobs)

    async def _awrite(
        self, jobs: Sequence[EncodedJob], route: Route | None = None
    ) -> dict[str, str]:
        """``_write``, awaited."""
        wait = Wait(jobs[0].wait, self._wait_limit) if jobs and jobs[0].wait else None
        duplicates: dict[str, str] = {}
        try:
            channel = await (route or self._route).achannel()
            replicated = await channel.apush(jobs, wait, duplicates)
        except BaseException as error:
            note_nothing_pushed(error)
            raise
        if wait is not None:
            note_replicated((job.jid for job in jobs), bool(replicated))
        if self.pushed_to is not None:
            self.pushed_to({job.queue for job in jobs})
        return duplicates


def _on_commit(send: Callable[[], None]) -> None:
    """Calls ``send`` when the transaction of this thread is committed. Raises ForkqError."""
    if transactions.on_commit is None:
        raise ForkqError(
            "a push that waits for a commit needs a database that forkq knows: add "
            '"forkq.contrib.django" to INSTALLED_APPS'
        )
    transactions.on_commit(send)


def _is_held(send: Callable[[], None]) -> bool:
    """Whether a transaction is open, whose commit will call ``send``. If none is, it is never
    called."""
    is_asked, is_open = True, True

    def send_later() -> None:
        nonlocal is_open
        if is_asked:
            is_open = False
        else:
            send()

    _on_commit(send_later)
    is_asked = False
    return is_open


def _given(template: Payload, args: list[Any]) -> Payload:
    """The job that ``push_args`` pushes, as a caller of ``push`` would give it."""
    given = {**template, "args": args}
    for key in UNSHARED:
        if given[key] is None:
            del given[key]
    return given


def _enqueued_now(job: EncodedJob) -> EncodedJob:
    """``job`` without the time that it has waited for the commit: that is no time in the queue."""
    from .features.marked import enqueued  # noqa: PLC0415 - a push at once needs none of it

    if job.at is not None:
        return job
    return replace(job, payload=enqueued(job.payload, now(), job.needs))


def _add_expiry(job: Payload, table: Mapping[str, float]) -> None:
    """``features.expire.queues.add_expiry``, which a client without ``[expire]`` does not need."""
    from .features.expire.queues import add_expiry  # noqa: PLC0415 - most clients have no such table

    add_expiry(job, table)


def plan_of(job: Payload, at: float | None) -> MarksPlan:
    """``features.marked.plan``, which a plain job does not need."""
    from .features.marked import plan  # noqa: PLC0415 - a plain push needs none of it

    return plan(job, at, registry.find(job["class"]))


def _settled(jobs: Sequence[EncodedJob], duplicates: dict[str, str]) -> list[str]:
    """``features.unique.answer.answer``, which a push without duplicates does not need."""
    from .features.unique.answer import answer  # noqa: PLC0415 - most pushes need none of it

    return answer(((job.jid, job.needs) for job in jobs), duplicates)


def _jids(jobs: Sequence[EncodedJob]) -> list[str]:
    return [job.jid for job in jobs]
